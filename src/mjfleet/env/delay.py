"""`Delay`: the latency of a motor or a sensor, for tasks. Runs in a worker."""

from typing import Any

import torch

from mjfleet.env.environment import Env


class Delay:
    """Returns the values that it was given some steps ago.

    Each environment has its own latency, drawn anew in each episode. The values before an episode
    are zeros. Make it in `setup`.
    """

    def __init__(self, env: Env[Any], size: int, low: int, high: int) -> None:
        """Delay values `(num_envs, size)` by `low` to `high` environment steps, both included."""

        def draw(mask: torch.Tensor) -> torch.Tensor:
            return env.uniform(1, low, high + 1).squeeze(1).floor().clamp(max=high)

        name = env.helper_name("delay")
        self.past = env.add_state(f"{name}.past", high + 1, size)
        self.steps = env.add_state(f"{name}.steps", dtype=torch.long, reset=draw)

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """Take the current values `(num_envs, size)` and return the delayed ones."""
        self.past.copy_(torch.cat((values.unsqueeze(1), self.past[:, :-1]), dim=1))
        index = self.steps.view(-1, 1, 1).expand(-1, 1, values.shape[1])
        return self.past.gather(1, index).squeeze(1)
