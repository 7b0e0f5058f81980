"""The seed of each worker."""


def rank_seed(seed: int, rank: int) -> int:
    return seed + rank
