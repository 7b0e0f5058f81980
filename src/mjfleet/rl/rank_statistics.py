"""What one rank tells the others about an iteration, and the sums and means over all ranks."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from typing import Any

from mjfleet.env import EpisodeStatistics


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """What one rank tells the others when its iteration ends, and all of them can add up."""

    statistics: EpisodeStatistics
    losses: dict[str, float]
    action_std: float
    warnings: dict[str, int]
    """Worlds in trouble by kind: every kind, also those without any."""
    collect_seconds: float
    learn_seconds: float
    collective_seconds: float
    """Time in collectives, waiting for other ranks included; part of the two above."""
    stop: int
    """The signal by which this rank was asked to stop, or 0."""
    diverged: bool
    checksum: int
    """Of parameters and normalisers; at most 2^53, so that a float64 holds it."""
    evaluation: EpisodeStatistics | None = None
    """Where there was one in this iteration, as on all ranks then."""
    eval_seconds: float = 0.0

    def pack(self) -> list[float]:
        """All numbers, in an order that depends on the names of terms, losses and kinds alone."""
        return [
            *_pack(self.statistics), *(_pack(self.evaluation) if self.evaluation else ()),
            *self.losses.values(), self.action_std, *self.warnings.values(), self.collect_seconds,
            self.learn_seconds, self.collective_seconds, self.stop, self.diverged, self.checksum,
            self.eval_seconds,
        ]  # fmt: skip

    def unpack(self, numbers: Sequence[float]) -> "RankReport":
        """The report of another rank, whose terms, losses and kinds have the names of this one."""
        rest = iter(numbers)
        return RankReport(
            statistics=_unpack(rest, self.statistics),
            evaluation=_unpack(rest, self.evaluation) if self.evaluation else None,
            losses={name: next(rest) for name in self.losses},
            action_std=next(rest),
            warnings={kind: int(next(rest)) for kind in self.warnings},
            collect_seconds=next(rest),
            learn_seconds=next(rest),
            collective_seconds=next(rest),
            stop=int(next(rest)),
            diverged=bool(next(rest)),
            checksum=int(next(rest)),
            eval_seconds=next(rest),
        )


def _pack(s: EpisodeStatistics) -> list[float]:
    """All numbers, in an order that depends on the names of terms and metrics alone."""
    sums = chain.from_iterable(s.metrics.values())
    return [s.episodes, s.returns, s.lengths, s.rewards, s.steps, *s.terms.values(), *sums]


def _unpack(numbers: Iterator[float], like: EpisodeStatistics) -> EpisodeStatistics:
    """Take what `_pack` made of statistics with the same names."""
    episodes, returns, lengths, rewards, steps = islice(numbers, 5)
    terms = {name: next(numbers) for name in like.terms}
    metrics = {name: (next(numbers), next(numbers)) for name in like.metrics}
    return EpisodeStatistics(int(episodes), returns, lengths, terms, rewards, int(steps), metrics)


def all_episodes(each: Sequence[EpisodeStatistics]) -> EpisodeStatistics:
    """Episodes and steps together."""
    return EpisodeStatistics(
        episodes=sum(s.episodes for s in each),
        returns=sum(s.returns for s in each),
        lengths=sum(s.lengths for s in each),
        terms={name: sum(s.terms[name] for s in each) for name in each[0].terms},
        rewards=sum(s.rewards for s in each),
        steps=sum(s.steps for s in each),
        metrics={
            name: (sum(s.metrics[name][0] for s in each), sum(s.metrics[name][1] for s in each))
            for name in each[0].metrics
        },
    )


def means(each: Sequence[EpisodeStatistics], term_names: Sequence[str]) -> dict[str, float | None]:
    """Over all episodes: "return", "length", and each reward term under "reward/" and its name.

    None: there are no episodes.
    """
    count = sum(s.episodes for s in each)
    sums = {
        "return": sum(s.returns for s in each),
        "length": sum(s.lengths for s in each),
    } | {f"reward/{name}": sum(s.terms[name] for s in each) for name in term_names}
    return {name: value / count if count else None for name, value in sums.items()}


def quotients(
    each: Sequence[EpisodeStatistics], metric_names: Sequence[str]
) -> dict[str, float | None]:
    """Over all steps: the task's own metrics. None: nothing to divide by."""
    sums = {
        name: [sum(both) for both in zip(*(s.metrics[name] for s in each), strict=True)]
        for name in metric_names
    }
    return {name: both[0] / both[1] if each and both[1] else None for name, both in sums.items()}


def slowest(reports: Sequence[RankReport]) -> tuple[int, float, float]:
    """Who kept the others waiting.

    Returns:
        The rank that waited least, since the others waited for it; the mean seconds that they did
        so; and its own seconds in collectives, which nobody could have saved it.
    """
    waited = [report.collective_seconds for report in reports]
    least = min(waited)
    others = len(waited) - 1
    return waited.index(least), (sum(waited) - least) / others - least if others else 0.0, least


def odd_ones_out(reports: Sequence[RankReport]) -> list[int]:
    """Ranks whose checksum is not that of the majority, or of rank 0 where there is none."""
    sums = [report.checksum for report in reports]
    common = max(sums, key=lambda value: (sums.count(value), value == sums[0]))
    return [rank for rank, value in enumerate(sums) if value != common]


class EpisodeWindow:
    """Means over the newest iterations in which, together, at least `episodes` episodes ended.

    Episodes that end in one iteration are few where they are long; the means would jump.
    """

    def __init__(self, episodes: int = 100) -> None:
        self._wanted = episodes
        self._newest: deque[EpisodeStatistics] = deque()

    def add(self, statistics: EpisodeStatistics) -> None:
        """Take in an iteration, and let go of the oldest ones that are no longer needed."""
        if statistics.episodes:
            self._newest.append(statistics)
        while self._count() - self._oldest() >= self._wanted:
            self._newest.popleft()

    def state(self) -> list[dict[str, Any]]:
        """What `restore` goes on from, as plain data."""
        return [asdict(statistics) for statistics in self._newest]

    def restore(self, state: Sequence[dict[str, Any]], term_names: tuple[str, ...]) -> None:
        """Go on from an earlier window; one of other reward terms is let go of."""
        newest = [EpisodeStatistics(**entry) for entry in state]
        if all(tuple(statistics.terms) == term_names for statistics in newest):
            self._newest = deque(newest)

    def means(self, term_names: tuple[str, ...]) -> dict[str, float | None]:
        """Mean "return" and "length", and each reward term under "reward/" and its name."""
        return means(self._newest, term_names)

    def _count(self) -> int:
        return sum(s.episodes for s in self._newest)

    def _oldest(self) -> int:
        return self._newest[0].episodes if self._newest else 0
