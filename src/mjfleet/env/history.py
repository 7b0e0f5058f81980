"""`History`: the newest observations side by side, for tasks. Runs in a worker."""

from typing import Any

import torch

from mjfleet.env.environment import Env


class History:
    """Keeps the newest observations, from which a policy can tell how values change.

    The first observation of an episode also fills the places before it. Make it in `setup`.
    """

    def __init__(self, env: Env[Any], size: int, length: int) -> None:
        """Keep `length` observations `(num_envs, size)`."""
        name = env.helper_name("history")
        self.past = env.add_state(f"{name}.past", length, size, reset="keep")
        self.is_new = env.add_state(f"{name}.is_new", dtype=torch.bool, reset=True, start=True)

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """Take the newest observation; return `(num_envs, length * size)`, the oldest first."""
        newest = values.to(self.past.dtype).unsqueeze(1)
        shifted = torch.cat((self.past[:, 1:], newest), dim=1)
        self.past.copy_(torch.where(self.is_new.view(-1, 1, 1), newest, shifted))
        self.is_new.fill_(False)
        return self.past.flatten(1).clone()
