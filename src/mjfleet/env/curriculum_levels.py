"""`next_levels`: the levels of a curriculum after an episode, for tasks. Runs in a worker."""

from typing import Any

import torch

from mjfleet.env.environment import Env


def next_levels(
    env: Env[Any], levels: torch.Tensor, up: torch.Tensor, down: torch.Tensor, count: int
) -> torch.Tensor:
    """Return the next levels `(num_envs,)`, long, of a curriculum with levels 0 to `count` - 1.

    An environment that has mastered the highest level continues at a random one, so that the policy
    forgets none (Rudin et al. 2022, arXiv:2109.11978).

    Args:
        env: its generator draws the random levels.
        levels: current levels, `(num_envs,)`, long.
        up: where the next level is harder, `(num_envs,)`, bool.
        down: where the next level is easier, `(num_envs,)`, bool.
        count: number of levels.
    """
    moved = (levels + up.long() - down.long()).clamp(min=0)
    drawn = env.uniform(1, 0, count).squeeze(1).long().clamp(max=count - 1)
    return torch.where(moved >= count, drawn, moved)
