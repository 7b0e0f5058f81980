"""The seed of each worker."""


def rank_seed(seed: int, rank: int) -> int:
    """Return the seed of a worker of a run."""
    return seed + rank
