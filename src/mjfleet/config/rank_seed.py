"""The seed of each worker, and seeds of several runs whose workers share none."""

from collections.abc import Iterable
from itertools import pairwise


def rank_seed(seed: int, rank: int) -> int:
    """Return the seed of a worker of a run."""
    return seed + rank


def seeds_apart(first: int, number: int, workers: int) -> range:
    """Return the seeds of that many runs, so far apart that their workers share no seed."""
    return range(first, first + number * workers, workers)


def shared_seed(seeds: Iterable[int], workers: int) -> str:
    """Return a warning if two runs would share a worker's seed, or empty text."""
    if all(other - one >= workers for one, other in pairwise(sorted(seeds))):
        return ""
    return (
        f"warning: a run has {workers} workers, so seeds less than {workers} apart share random "
        "numbers, and their results are not independent"
    )
