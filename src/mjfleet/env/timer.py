"""A timer that fires after random intervals and resets itself. Tasks make it in `setup`."""

import math
from numbers import Real
from typing import Any

import torch

from mjfleet.env.argument_checks import wrong_numbers
from mjfleet.env.environment import Env


class Timer:
    """Fires in each environment after random intervals, for pushes or new commands.

    It counts the steps itself, and begins anew with each episode.
    """

    left: torch.Tensor
    """Steps until the timer fires, `(num_envs,)`. Seconds would add up rounding errors."""
    due: torch.Tensor
    """Where an interval has ended with the newest step, `(num_envs,)`, bool. Known in `end_episode`
    and until the physics of the next step; false where an episode begins."""

    def __init__(self, env: Env[Any], low: float, high: float) -> None:
        """Fire every `low` to `high` simulated seconds, rounded to whole steps.

        Raises:
            UserError: they are not finite numbers from 0 up, the lower one first.
        """
        if not all(isinstance(one, Real) for one in (low, high)) or not 0 <= low <= high < math.inf:
            raise wrong_numbers(env, f"Timer({low}, {high})", "finite, and 0 <= low <= high")

        def draw(mask: torch.Tensor) -> torch.Tensor:
            return env.uniform(1, low / env.step_dt, high / env.step_dt).squeeze(1)

        def advance() -> None:
            self.left -= 1.0
            torch.lt(self.left, 0.5, out=self.due)
            env.write(self.due, self.left, draw(self.due))

        self.left = env.add_state("timer.left", reset=draw)
        self.due = env.add_state("timer.due", dtype=torch.bool)
        env.each_step(advance)
