"""Levels of a curriculum, and those on which policies are evaluated. Tasks make them in `setup`."""

from dataclasses import dataclass
from typing import Any

import torch

from mjfleet.env.argument_checks import check_shape, wrong_numbers
from mjfleet.env.environment import Env
from mjfleet.errors import UserError


@dataclass(frozen=True)
class EvaluatedLevels:
    of_envs: torch.Tensor  # Levels of this worker's environments, `(num_envs,)`, long.
    numbers: tuple[int, ...]  # Levels of all workers' environments, each once, in order.
    names: tuple[str, ...] = ()  # Names of all levels, such as those of clips, or none.


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
        if not isinstance(count, int) or count < 1 or not ((levels >= 0) & (levels < count)).all():
            raise wrong_numbers(env, f"Levels({count}, {start})", "0 <= start < count")
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
            check_shape(self, mask, self.now)
        if self._env.is_evaluation:
            return
        moved = (self.now + up.long() - down.long()).clamp(min=0)
        drawn = self._env.integers(1, 0, self._count).squeeze(1)
        torch.where(moved >= self._count, drawn, moved, out=self.now)

    def draw_from(self, levels: torch.Tensor) -> None:
        """Draw the level of each environment from those of others, `(n,)`, long."""
        place = self._env.integers(1, 0, len(levels)).squeeze(1)
        self.now.copy_(levels.to(place.device)[place].clamp(0, self._count - 1))


def evaluation_levels(env: Env[Any], count: int, names: tuple[str, ...] = ()) -> torch.Tensor:
    """Return on which of `count` levels each environment is evaluated, `(num_envs,)`, long.

    For curricula without `Levels`, where `env.is_evaluation` is true. The environments of all
    workers are divided evenly among the levels that `env.levels_to_evaluate` names. Levels that
    have `names` are evaluated by each metric.

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
    # Each environment has the middle of its part: of 8 levels, one has 4; two have 2 and 6.
    places = (2 * env.env_ids + 1) * len(numbers) // (2 * env.shard.total)
    levels = torch.tensor(numbers, device=env.device)[places]
    env.evaluated = env.evaluated or EvaluatedLevels(levels, tuple(sorted({*numbers})), names)
    return levels.clone()
