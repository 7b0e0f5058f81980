"""`History`: the newest observations side by side, for tasks. Runs in a worker."""

from typing import Any

import torch
from torch import nn

from mjfleet.env.environment import Env


class History(nn.Module):
    """Keeps the newest observations, from which a policy can tell how values change.

    The first observation of an episode also fills the places before it. A task calls `reset` in
    `reset_worlds`. Buffers are written in place, so that checkpoints hold them.
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
        """Take the newest observation; return `(num_envs, length * size)`, the oldest first."""
        newest = values.to(self.past.dtype).unsqueeze(1)
        shifted = torch.cat((self.past[:, 1:], newest), dim=1)
        self.past.copy_(torch.where(self.is_new.view(-1, 1, 1), newest, shifted))
        self.is_new.zero_()
        return self.past.flatten(1)

    def reset(self, mask: torch.Tensor) -> None:
        """Forget all observations where `mask` `(num_envs,)` is true."""
        self.is_new.logical_or_(mask)
