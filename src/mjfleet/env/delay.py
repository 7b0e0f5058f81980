"""`Delay`: the latency of a motor or a sensor, for tasks. Runs in a worker."""

from typing import Any

import torch
from torch import nn

from mjfleet.env.environment import Env


class Delay(nn.Module):
    """Returns the values that it was given some steps ago.

    Each environment has its own latency, drawn anew in each episode. The values before an episode
    are zeros. A task calls `reset` in `reset_worlds`. Buffers are written in place, so that
    checkpoints hold them.
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
        """Take the current values `(num_envs, size)` and return the delayed ones."""
        self.past.copy_(torch.cat((values.unsqueeze(0), self.past[:-1])))
        index = self.steps.view(1, -1, 1).expand(1, *values.shape)
        return self.past.gather(0, index).squeeze(0)

    def reset(self, mask: torch.Tensor) -> None:
        """Clear the past and draw a new latency where `mask` `(num_envs,)` is true."""
        self.past.masked_fill_(mask.unsqueeze(1), 0.0)
        drawn = self._env.uniform(1, self._low, self._high + 1).squeeze(1).floor()
        self.steps.copy_(torch.where(mask, drawn.long().clamp(max=self._high), self.steps))
