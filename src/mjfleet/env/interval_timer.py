"""`Timer`: random intervals for pushes or for new commands, for tasks. Runs in a worker."""

from typing import Any

import torch

from mjfleet.env.environment import Env


class Timer:
    """Fires in each environment after random intervals, which begin anew with each episode.

    Make it in `setup`. It counts the steps itself.
    """

    left: torch.Tensor
    """Steps until the timer fires, `(num_envs,)`. Seconds would add up rounding errors."""
    due: torch.Tensor
    """Where an interval has ended with the newest step, `(num_envs,)`, bool. Known in `end_episode`
    and until the physics of the next step; false where an episode begins."""

    def __init__(self, env: Env[Any], low: float, high: float) -> None:
        """Fire every `low` to `high` simulated seconds, rounded to whole steps."""

        def draw(mask: torch.Tensor) -> torch.Tensor:
            return env.uniform(1, low, high).squeeze(1) / env.step_dt

        name = env.helper_name("timer")
        self._draw = draw
        self.left = env.add_state(f"{name}.left", reset=draw)
        self.due = env.add_state(f"{name}.due", dtype=torch.bool)
        env.each_step(self._advance)

    def _advance(self) -> None:
        self.left -= 1.0
        torch.lt(self.left, 0.5, out=self.due)
        self.left.copy_(torch.where(self.due, self._draw(self.due), self.left))
