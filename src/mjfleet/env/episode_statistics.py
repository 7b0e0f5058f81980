"""Sums over ended episodes and over steps, per reward term and metric. Runs in a worker."""

from collections.abc import Mapping, Sequence

import torch

Metrics = Mapping[str, torch.Tensor | tuple[torch.Tensor, torch.Tensor]]
"""What `Env.metrics` returns."""

Sums = dict[str, tuple[float, float]]
"""By name: a sum, and the count that it is to be divided by. Those of several ranks are added."""

EARLY = 3
"""Episodes of at most so many steps teach nothing."""


def early_end(length: float | None, most: int) -> list[str]:
    """Return a hint if episodes end early.

    Args:
        length: of episodes, in steps. None: no episode has ended.
        most: steps after which an episode times out.
    """
    if length is None or length > EARLY or most <= 2 * EARLY:
        return []
    return [
        f"terminated() or truncated(): episodes end after {length:.3g} of {most} steps, so that "
        "nothing can be learned; is the condition the wrong way round? Let terminated() be true "
        "only where the task has failed, and write states in reset_worlds() where it has not "
        "(angles are in rad, quaternions w, x, y, z)"
    ]


def means(sums: Sums) -> dict[str, float | None]:
    """Return quotients. None: the count is zero."""
    return {name: total / count if count else None for name, (total, count) in sums.items()}


def episode_sums(
    episodes: float,
    lengths: float,
    rest: Sequence[float],
    reward_names: Sequence[str],
    metric_names: Sequence[str],
) -> Sums:
    """Return `return`, `length` and `reward/<name>` of episodes, and `task/<name>` of steps.

    `lengths` is the sum of the `episodes`' lengths in steps, `rest` that of each reward term over
    them, and then dividend and divisor of each metric, summed over steps.
    """
    terms, measured = rest[: len(reward_names)], rest[len(reward_names) :]
    rewards = {f"reward/{k}": (v, episodes) for k, v in zip(reward_names, terms, strict=True)}
    pairs = zip(measured[::2], measured[1::2], strict=True)
    tasks = {f"task/{k}": pair for k, pair in zip(metric_names, pairs, strict=True)}
    return {"return": (sum(terms), episodes), "length": (lengths, episodes), **rewards, **tasks}


def metric_pairs(metrics: Metrics, one: torch.Tensor) -> list[torch.Tensor]:
    """Return dividend and divisor of each metric; `one` is 1 everywhere, `(num_envs,)`."""
    pairs = []
    for value in metrics.values():
        pairs += value if isinstance(value, tuple) else (value, one)
    return pairs
