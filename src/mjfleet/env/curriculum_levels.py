"""The levels of a curriculum: after an episode in training, and in an evaluation. In a worker."""

from dataclasses import dataclass
from typing import Any

import torch

from mjfleet.env.environment import Env
from mjfleet.errors import UserError


@dataclass(frozen=True)
class EvaluatedLevels:
    """The levels on which policies are evaluated."""

    each: torch.Tensor  # That of each environment of this worker, `(num_envs,)`, long.
    numbers: tuple[int, ...]  # All, each once and in order.


def next_levels(
    env: Env[Any], levels: torch.Tensor, up: torch.Tensor, down: torch.Tensor, count: int
) -> torch.Tensor:
    """Return the next levels `(num_envs,)`, long, of a curriculum with levels 0 to `count` - 1.

    An environment that has mastered the highest level continues at a random one, so that the policy
    forgets none (Rudin et al. 2022, arXiv:2109.11978). In an evaluation each environment stays on a
    level of its own: see `evaluation_levels`.

    Args:
        env: its generator draws the random levels.
        levels: current levels, `(num_envs,)`, long.
        up: where the next level is harder, `(num_envs,)`, bool.
        down: where the next level is easier, `(num_envs,)`, bool.
        count: number of levels.
    """
    if env.is_evaluation:
        return evaluation_levels(env, count)
    if env.first_levels is None:
        env.first_levels = levels.clone()
    moved = (levels + up.long() - down.long()).clamp(min=0)
    drawn = env.uniform(1, 0, count).squeeze(1).long().clamp(max=count - 1)
    return torch.where(moved >= count, drawn, moved)


def evaluation_levels(env: Env[Any], count: int) -> torch.Tensor:
    """Return on which level each environment is evaluated, `(num_envs,)`, long; always the same.

    For tasks whose curriculum does without `next_levels`, where `env.is_evaluation` is true. The
    environments of all workers are divided evenly among the levels that `env.levels_to_evaluate`
    names. If there are fewer environments than levels, some of the levels are left out.

    Args:
        env: in an evaluation.
        count: number of levels of the curriculum.

    Raises:
        UserError: `levels_to_evaluate` names no level, or one that there is not.
    """
    assert env.shard
    if count not in env.evaluated_levels:
        numbers = tuple(env.levels_to_evaluate(count))
        if not numbers or not {*numbers} <= {*range(count)}:
            raise UserError(
                f"{type(env).__name__}.levels_to_evaluate({count}) returns {list(numbers)}; it "
                f"must return one or more levels from 0 to {count - 1}."
            )
        # The middle of each environment's part of the levels: 1 of 8 is level 4, 2 are 2 and 6.
        places = (2 * env.env_ids + 1) * len(numbers) // (2 * env.shard.total)
        each = torch.tensor(numbers, device=env.device)[places]
        env.evaluated_levels[count] = EvaluatedLevels(each, tuple(sorted({*numbers})))
    return env.evaluated_levels[count].each.clone()


def levels_of(env: Env[Any]) -> EvaluatedLevels | None:
    """Return the levels of the first curriculum that has asked for them, in an evaluation."""
    return next(iter(env.evaluated_levels.values()), None)
