"""Mirrors half of each batch, for robots whose left and right sides are alike."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch

from mjfleet.config import SACConfig
from mjfleet.config.validation import Rule, check
from mjfleet.errors import UserError
from mjfleet.rl.equivariance import Mirror, join, read_mirrors
from mjfleet.rl.learner import Setup
from mjfleet.rl.networks import augmentation
from mjfleet.rl.sac.seeing import limits_of


class MirroredHalf:
    """Replaces the first half of a batch by its mirror images.

    Mittal et al. 2024 (arXiv:2403.04359). Samples are in random order, so that each is mirrored in
    half of the batches that it is in.
    """

    def __init__(self, setup: Setup, observed: Mapping[str, torch.Tensor]) -> None:
        """Read the mirrors of groups of observations `(num_envs, size)` and of actions.

        UserError if the task's function is no mirror, images are observed, or a worker has one
        sample.
        """
        env, config = setup.env, cast(SACConfig, setup.agent.algorithm)
        least = 2 * setup.collectives.world_size
        allowed = f"at least {least}, two a worker, of which one is mirrored"
        check(config, batch_size=Rule(lambda size: size >= least, allowed))
        if images := [name for name, rows in observed.items() if rows.ndim != 2]:
            raise UserError(
                f"--agent.algorithm.symmetry-cfg: sac mirrors numbers alone, and `{images[0]}` is "
                "an image; use --agent.algorithm.symmetry-cfg.no-use-data-augmentation."
            )
        mirror: Any = augmentation(config.symmetry_cfg, setup.load)
        sizes = {name: rows.shape[1] for name, rows in observed.items()}
        device = torch.device(env.device)
        self._groups, (source, sign) = read_mirrors(
            partial(mirror, env), sizes, env.num_actions, device
        )
        # Actions are shares of their limits, which may differ between the sides.
        limit = limits_of(env)
        self._actions = Mirror(source, sign * (limit[source] / limit))

    def of_groups(self, names: Sequence[str]) -> Mirror:
        """Return the mirror of groups that follow each other."""
        return join([self._groups[name] for name in names])

    def apply(self, *observed: Mapping[str, torch.Tensor], actions: torch.Tensor) -> None:
        """Mirror half of each of `observed`, by group, and of the actions."""
        pairs = [(rows, self._groups[name]) for batch in observed for name, rows in batch.items()]
        for rows, (source, sign) in [*pairs, (actions, self._actions)]:
            half = rows[: len(rows) // 2]
            half.copy_(half[:, source] * sign)
