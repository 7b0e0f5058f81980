"""A worker's share of an evaluation."""

from dataclasses import dataclass

EVALUATION_SEED = 2**31 - 1
"""Seed of every evaluation, so that all runs are evaluated in the same episodes."""


@dataclass(frozen=True)
class EnvShard:
    """A worker's share of the environments in which policies are evaluated."""

    first: int  #: Number of the first environment of this worker.
    count: int  #: Number of environments of this worker.
    total: int  #: Number of environments of all workers.
    seed: int = EVALUATION_SEED
