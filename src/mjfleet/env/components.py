"""What many tasks keep for each world: delays, histories, timers, curricula. A task composes them.

Each is a torch module whose buffers have the world index and are written in place, so that a
checkpoint holds them and CUDA graphs may. Each is told of resets by its own `reset(mask)`, which a
task calls in `reset_worlds`. Random numbers come from the environment's own generator.
"""

from typing import Any

import torch
from torch import nn

from mjfleet.env.environment import Env


class Delay(nn.Module):
    """Hands on what it was given some steps ago: the latency of a motor or a sensor.

    Each world has a latency of its own, drawn anew in each episode. Before the first value of an
    episode there were zeros.
    """

    past: torch.Tensor
    steps: torch.Tensor

    def __init__(self, env: Env[Any], size: int, low: int, high: int) -> None:
        """Delay values `(num_envs, size)` by `low` to `high` environment steps, both included."""
        super().__init__()
        self._env, self._low, self._high = env, low, high
        self.register_buffer("past", torch.zeros(high + 1, env.num_envs, size, device=env.device))
        self.register_buffer("steps", torch.zeros_like(env.episode_length_buf))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Take `(num_envs, size)` values of now; returns as many of earlier."""
        self.past.copy_(torch.cat((values.unsqueeze(0), self.past[:-1])))
        index = self.steps.view(1, -1, 1).expand(1, *values.shape)
        return self.past.gather(0, index).squeeze(0)

    def reset(self, mask: torch.Tensor) -> None:
        """Begin anew where `mask` `(num_envs,)` is true."""
        self.past.masked_fill_(mask.unsqueeze(1), 0.0)
        drawn = self._env.uniform(1, self._low, self._high + 1).squeeze(1).floor()
        self.steps.copy_(torch.where(mask, drawn.long().clamp(max=self._high), self.steps))


class History(nn.Module):
    """The newest few observations side by side, by which a policy can tell how things change.

    The first observation of an episode stands for those before it.
    """

    past: torch.Tensor
    is_new: torch.Tensor

    def __init__(self, env: Env[Any], size: int, length: int) -> None:
        """Keep `length` observations `(num_envs, size)`."""
        super().__init__()
        shape = (env.num_envs, length, size)
        self.register_buffer("past", torch.zeros(shape, device=env.device))
        self.register_buffer("is_new", torch.ones_like(env.episode_length_buf, dtype=torch.bool))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Take the newest; returns `(num_envs, length * size)`, the oldest first."""
        newest = values.to(self.past.dtype).unsqueeze(1)
        shifted = torch.cat((self.past[:, 1:], newest), dim=1)
        self.past.copy_(torch.where(self.is_new.view(-1, 1, 1), newest, shifted))
        self.is_new.zero_()
        return self.past.flatten(1)

    def reset(self, mask: torch.Tensor) -> None:
        """Forget where `mask` `(num_envs,)` is true."""
        self.is_new.logical_or_(mask)


class Timer(nn.Module):
    """Goes off in each world after random times: for pushes, or commands that change."""

    left: torch.Tensor

    def __init__(self, env: Env[Any], low: float, high: float) -> None:
        """Go off every `low` to `high` simulated seconds."""
        super().__init__()
        self._env, self._low, self._high = env, low, high
        self.register_buffer("left", torch.zeros(env.num_envs, device=env.device))

    def forward(self) -> torch.Tensor:
        """Let a step pass; returns where it goes off, `(num_envs,)`, bool."""
        self.left.sub_(self._env.step_dt)
        due = self.left <= 0.0
        self.reset(due)
        return due

    def reset(self, mask: torch.Tensor) -> None:
        """Draw a new time where `mask` `(num_envs,)` is true."""
        drawn = self._env.uniform(1, self._low, self._high).squeeze(1)
        self.left.copy_(torch.where(mask, drawn, self.left))


def next_levels(
    env: Env[Any], levels: torch.Tensor, up: torch.Tensor, down: torch.Tensor, count: int
) -> torch.Tensor:
    """The levels `(num_envs,)` of a curriculum after an episode, of `count` from 0 on.

    Who has mastered the highest one goes on at a random one, so that none is forgotten: Rudin et
    al. 2022, arXiv:2109.11978.

    Args:
        env: whose generator draws.
        levels: those of now, long.
        up: where the next is harder, bool.
        down: where it is easier, bool.
        count: how many there are.
    """
    moved = (levels + up.long() - down.long()).clamp(min=0)
    drawn = env.uniform(1, 0, count).squeeze(1).long().clamp(max=count - 1)
    return torch.where(moved >= count, drawn, moved)
