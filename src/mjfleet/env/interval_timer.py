"""`Timer`: random intervals for pushes or for new commands, for tasks. Runs in a worker."""

from typing import Any

import torch
from torch import nn

from mjfleet.env.environment import Env


class Timer(nn.Module):
    """Fires in each environment after random intervals.

    A task calls it once in each step, and `reset` in `reset_worlds`. Where it is called at the end
    of a step, that is before `reset`: the episode that begins there has had no step yet. The buffer
    is written in place, so that checkpoints hold it.
    """

    left: torch.Tensor
    """Steps until the timer fires, `(num_envs,)`. Seconds would add up rounding errors."""

    def __init__(self, env: Env[Any], low: float, high: float) -> None:
        """Fire every `low` to `high` simulated seconds, rounded to whole steps."""
        super().__init__()
        self._env, self._low, self._high = env, low, high
        self.register_buffer("left", torch.zeros(env.num_envs, device=env.device))

    def forward(self) -> torch.Tensor:
        """Advance by one step; return where the timer fires, `(num_envs,)`, bool."""
        self.left.sub_(1.0)
        due = self.left < 0.5
        self.reset(due)
        return due

    def reset(self, mask: torch.Tensor) -> None:
        """Draw a new interval where `mask` `(num_envs,)` is true."""
        drawn = self._env.uniform(1, self._low, self._high).squeeze(1)
        self.left.copy_(torch.where(mask, drawn / self._env.step_dt, self.left))
