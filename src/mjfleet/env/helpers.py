"""What tasks compose in `setup`: delays, histories, timers and levels, which reset themselves."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from mjfleet.env.environment import Env
from mjfleet.errors import UserError


class Delay:
    """Returns the values that it was given some steps ago: the latency of a motor or a sensor.

    Each episode draws its own latency.
    """

    def __init__(
        self, env: Env[Any], size: int, low: int, high: int, *, repeat_first: bool = False
    ) -> None:
        """Delay values `(num_envs, size)` by `low` to `high` environment steps, both included.

        Args:
            env: the environment.
            size: of the values.
            low: least steps of delay.
            high: most steps of delay.
            repeat_first: whether an episode's first value is returned until the delay has passed,
                as a sensor would; otherwise zeros are, as before a motor's first action.

        Raises:
            UserError: they are not whole numbers from 0 up, the lower one first.
        """
        if not (isinstance(low, int) and isinstance(high, int) and 0 <= low <= high):
            raise _error(env, f"Delay({low}, {high})", "whole, and 0 <= low <= high")

        def draw(mask: torch.Tensor) -> torch.Tensor:
            return env.integers(1, low, high + 1).squeeze(1)

        self.past = env.add_state("delay.past", high + 1, size)
        self.steps = env.add_state("delay.steps", dtype=torch.long, reset=draw)
        self.is_new = None
        if repeat_first:
            self.is_new = env.add_state("delay.is_new", dtype=torch.bool, reset=True)

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """Take the current values `(num_envs, size)` and return the delayed ones.

        Raises:
            UserError: the values have another shape.
        """
        _check_shape(self, values, self.past[:, 0])
        newest = values.to(self.past.dtype).unsqueeze(1)
        _push(self.past, torch.cat((newest, self.past[:, :-1]), dim=1), newest, self.is_new)
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
        """Take the newest observation `(num_envs, size)`; return `(num_envs, length * size)`, the
        oldest first.

        Raises:
            UserError: the observation has another shape.
        """
        _check_shape(self, values, self.past[:, 0])
        newest = values.to(self.past.dtype).unsqueeze(1)
        _push(self.past, torch.cat((self.past[:, 1:], newest), dim=1), newest, self.is_new)
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
        """Fire every `low` to `high` simulated seconds, rounded to whole steps.

        Raises:
            UserError: they are not finite numbers from 0 up, the lower one first.
        """
        if not 0 <= low <= high < math.inf:
            raise _error(env, f"Timer({low}, {high})", "finite, and 0 <= low <= high")

        def draw(mask: torch.Tensor) -> torch.Tensor:
            return env.uniform(1, low / env.step_dt, high / env.step_dt).squeeze(1)

        def advance() -> None:
            self.left -= 1.0
            torch.lt(self.left, 0.5, out=self.due)
            env.write(self.due, self.left, draw(self.due))

        self.left = env.add_state("timer.left", reset=draw)
        self.due = env.add_state("timer.due", dtype=torch.bool)
        env.each_step(advance)


@dataclass(frozen=True)
class EvaluatedLevels:
    """The levels on which policies are evaluated."""

    of_envs: torch.Tensor  # Levels of this worker's environments, `(num_envs,)`, long.
    numbers: tuple[int, ...]  # Levels of all workers' environments, each once, in order.


class Levels:
    """The level of each environment, 0 to `count` - 1. Make it in `setup`.

    In an evaluation each environment stays on a level of its own: see `evaluation_levels`.
    """

    now: torch.Tensor
    """Current levels, `(num_envs,)`, long."""

    def __init__(self, env: Env[Any], count: int, start: torch.Tensor | int = 0) -> None:
        """Begin at `start`, `(num_envs,)` or a number.

        Raises:
            UserError: there is no level, or `start` is none of them.
        """
        levels = torch.as_tensor(start)
        if count < 1 or not ((levels >= 0) & (levels < count)).all():
            raise _error(env, f"Levels({count}, {start})", "0 <= start < count")
        self._env, self._count = env, count
        if env.is_evaluation:
            start = evaluation_levels(env, count)
        self.now = env.add_state("levels.now", dtype=torch.long, reset="keep", start=start)
        env.curricula.append(self)

    def move(self, up: torch.Tensor, down: torch.Tensor) -> None:
        """Move to the next level, in `end_episode`: harder where `up`, easier where `down`, both
        `(num_envs,)`, bool.

        An environment that has mastered the highest level continues at a random one, so that the
        policy forgets none (Rudin et al. 2022, arXiv:2109.11978).

        Raises:
            UserError: one of them has another shape.
        """
        for mask in (up, down):
            _check_shape(self, mask, self.now)
        if self._env.is_evaluation:
            return
        moved = (self.now + up.long() - down.long()).clamp(min=0)
        drawn = self._env.integers(1, 0, self._count).squeeze(1)
        torch.where(moved >= self._count, drawn, moved, out=self.now)

    def draw_from(self, levels: torch.Tensor) -> None:
        """Draw the level of each environment from those of others, `(n,)`, long."""
        place = self._env.integers(1, 0, len(levels)).squeeze(1)
        self.now.copy_(levels.to(place.device)[place].clamp(0, self._count - 1))


def evaluation_levels(env: Env[Any], count: int) -> torch.Tensor:
    """Return on which of `count` levels each environment is evaluated, `(num_envs,)`, long.

    For curricula without `Levels`, where `env.is_evaluation` is true. The environments of all
    workers are divided evenly among the levels that `env.levels_to_evaluate` names.

    Raises:
        UserError: this is no evaluation; `levels_to_evaluate` names no level, or one that does not
            exist.
    """
    if env.shard is None:
        kind = type(env).__name__
        raise UserError(f"{kind}: evaluation_levels is called where self.is_evaluation is false.")
    numbers = tuple(env.levels_to_evaluate(count))
    if not numbers or not {*numbers} <= {*range(count)}:
        raise UserError(
            f"{type(env).__name__}.levels_to_evaluate({count}) returns {list(numbers)}; it must "
            f"return one or more levels from 0 to {count - 1}."
        )
    # The middle of each environment's part of the levels: 1 of 8 is level 4, 2 are 2 and 6.
    places = (2 * env.env_ids + 1) * len(numbers) // (2 * env.shard.total)
    levels = torch.tensor(numbers, device=env.device)[places]
    env.evaluated = env.evaluated or EvaluatedLevels(levels, tuple(sorted({*numbers})))
    return levels.clone()


def _push(
    past: torch.Tensor, shifted: torch.Tensor, newest: torch.Tensor, is_new: torch.Tensor | None
) -> None:
    """Write `shifted` into `past`, both `(num_envs, length, size)`; where an episode `is_new`,
    `(num_envs,)`, write `newest`, `(num_envs, 1, size)`, into all places."""
    if is_new is None:
        past.copy_(shifted)
    else:
        torch.where(is_new.view(-1, 1, 1), newest, shifted, out=past)
        is_new.fill_(False)


def _error(env: Env[Any], what: str, wanted: str) -> UserError:
    """Return the error of a helper that is made with wrong numbers."""
    return UserError(f"{type(env).__name__}: the numbers of {what} must be {wanted}.")


def _check_shape(helper: object, values: torch.Tensor, own: torch.Tensor) -> None:
    """Raise UserError unless values have the shape of the helper's own."""
    if values.shape != own.shape:
        name, wanted, given = type(helper).__name__, tuple(own.shape), tuple(values.shape)
        raise UserError(f"{name} was made for values {wanted}, and is given {given}.")
