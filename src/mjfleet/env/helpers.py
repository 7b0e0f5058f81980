"""What tasks compose in `setup`: `Delay`, `History` and `Timer`. They declare and reset their own
state. In a worker."""

from typing import Any

import torch

from mjfleet.env.environment import Env
from mjfleet.errors import UserError


class Delay:
    """Returns the values that it was given some steps ago: the latency of a motor or a sensor.

    Each episode draws its own latency. The values before it are zeros.
    """

    def __init__(self, env: Env[Any], size: int, low: int, high: int) -> None:
        """Delay values `(num_envs, size)` by `low` to `high` environment steps, both included."""

        def draw(mask: torch.Tensor) -> torch.Tensor:
            return env.uniform(1, low, high + 1).squeeze(1).floor().clamp(max=high)

        self.past = env.add_state("delay.past", high + 1, size)
        self.steps = env.add_state("delay.steps", dtype=torch.long, reset=draw)

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """Take the current values `(num_envs, size)` and return the delayed ones."""
        _check_values(self, values)
        self.past.copy_(torch.cat((values.unsqueeze(1), self.past[:, :-1]), dim=1))
        index = self.steps.view(-1, 1, 1).expand(-1, 1, values.shape[1])
        return self.past.gather(1, index).squeeze(1)


class History:
    """Keeps the newest observations, from which a policy can tell how values change.

    The first observation of an episode also fills the places before it.
    """

    def __init__(self, env: Env[Any], size: int, length: int) -> None:
        """Keep `length` observations `(num_envs, size)`."""
        self.past = env.add_state("history.past", length, size, reset="keep")
        self.is_new = env.add_state("history.is_new", dtype=torch.bool, reset=True)

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """Take the newest observation; return `(num_envs, length * size)`, the oldest first."""
        _check_values(self, values)
        newest = values.to(self.past.dtype).unsqueeze(1)
        shifted = torch.cat((self.past[:, 1:], newest), dim=1)
        self.past.copy_(torch.where(self.is_new.view(-1, 1, 1), newest, shifted))
        self.is_new.fill_(False)
        return self.past.flatten(1).clone()


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
        """Fire every `low` to `high` simulated seconds, rounded to whole steps."""

        def draw(mask: torch.Tensor) -> torch.Tensor:
            return env.uniform(1, low, high).squeeze(1) / env.step_dt

        def advance() -> None:
            self.left -= 1.0
            torch.lt(self.left, 0.5, out=self.due)
            self.left.copy_(torch.where(self.due, draw(self.due), self.left))

        self.left = env.add_state("timer.left", reset=draw)
        self.due = env.add_state("timer.due", dtype=torch.bool)
        env.each_step(advance)


def _check_values(helper: Delay | History, values: torch.Tensor) -> None:
    """Raise UserError unless the values are those of the helper's environment."""
    if values.shape != (wanted := helper.past[:, 0].shape):
        name, given = type(helper).__name__, tuple(values.shape)
        raise UserError(f"{name} was made for values {tuple(wanted)}, and is given {given}.")
