"""The seed of each worker, and seeds of several runs whose workers share none."""

from collections.abc import Iterable
from itertools import pairwise


def rank_seed(seed: int, rank: int) -> int:
    """Return the seed of a worker of a run."""
    return seed + rank


def seeds_apart(first: int, number: int, workers: int) -> range:
    """Return the seeds of that many runs, so far apart that their workers share no seed.

    Examples:
        >>> list(seeds_apart(1, 3, workers=2))
        [1, 3, 5]
    """
    return range(first, first + number * workers, workers)


def shared_seed(seeds: Iterable[int], workers: int) -> str:
    """Return a warning if two runs would share a worker's seed, or empty text."""
    for one, other in pairwise(sorted(seeds)):
        if other - one < workers:
            return (
                f"warning: rank {other - one} of the run with seed {one} has the same random "
                f"numbers as rank 0 of the run with seed {other}, since each run has {workers} "
                f"workers: results of seeds less than {workers} apart are not independent"
            )
    return ""
