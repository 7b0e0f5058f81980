"""Sums over ended episodes and over steps, per reward term and metric. Runs in a worker."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

Metrics = Mapping[str, torch.Tensor | tuple[torch.Tensor, torch.Tensor]]
"""What `Env.metrics` returns."""


@dataclass(frozen=True)
class EpisodeStatistics:
    """Sums over the episodes that ended, and over the steps taken, since the last call."""

    episodes: int
    returns: float
    lengths: float  # In environment steps.
    terms: dict[str, float]  # Sum of each reward term over those episodes.
    rewards: float  # Sum over all steps of all environments, of unfinished episodes too.
    steps: int  # Of all environments together.
    metrics: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Dividend and divisor of each of the task's metrics, summed over the same steps."""
    levels: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Of an evaluation: sum of returns and number of episodes on each level of a curriculum."""


def from_totals(
    totals: Sequence[float], steps: int, reward_names: Sequence[str], metric_names: Sequence[str]
) -> EpisodeStatistics:
    """Return statistics of `steps` of all environments together.

    `totals` are number, lengths and rewards as in EpisodeStatistics, each term, and dividend and
    divisor of each metric.
    """
    episodes, lengths, rewards, *rest = totals
    terms, sums = rest[: len(reward_names)], rest[len(reward_names) :]
    return EpisodeStatistics(
        episodes=round(episodes),
        returns=sum(terms),
        lengths=lengths,
        terms=dict(zip(reward_names, terms, strict=True)),
        rewards=rewards,
        steps=steps,
        metrics={name: (sums[2 * i], sums[2 * i + 1]) for i, name in enumerate(metric_names)},
    )


def stack_metrics(metrics: Metrics) -> torch.Tensor:
    """Return dividend and divisor of each metric, `(2 * number of metrics, num_envs)`, float32."""
    parts = []
    for value in metrics.values():
        parts += value if isinstance(value, tuple) else (value, torch.ones_like(value))
    return torch.stack(parts).to(torch.float32)
