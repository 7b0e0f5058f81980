"""What ranks tell each other about an iteration, and the sums and means over all of them.

Runs in a worker.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

from mjfleet.env import NAN, EpisodeStatistics
from mjfleet.loggers.iteration_metrics import IterationMetrics


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """What one rank tells the others when its iteration ends."""

    statistics: EpisodeStatistics
    losses: dict[str, float]
    action_std: float
    warnings: dict[str, int]
    """Environments with a warning of the simulation: every kind, also those without any."""
    collect_seconds: float
    learn_seconds: float
    collective_seconds: float
    """Time in collectives, waiting for other ranks included; part of the two above."""
    stop: int
    """The signal by which this rank was asked to stop, or 0."""
    diverged: bool
    checksum: int
    """See replica_checksum."""
    evaluation: EpisodeStatistics | None = None
    """None on all ranks if no evaluation was due."""
    eval_seconds: float = 0.0

    def pack(self) -> list[float]:
        """Return all numbers, in an order that depends on the names in dictionaries alone."""
        return list(_numbers(self))

    def unpack(self, numbers: Sequence[float]) -> "RankReport":
        """Return the report of another rank, whose dictionaries have the names of this one's."""
        return _rebuild(self, iter(numbers))


def _numbers(value: Any) -> Iterator[float]:
    """Yield the numbers in a tree of dataclasses, dictionaries and tuples."""
    if is_dataclass(value):
        value = [getattr(value, field.name) for field in fields(value)]
    elif isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, tuple):
        if value is not None:
            yield float(value)
        return
    for item in value:
        yield from _numbers(item)


def _rebuild(like: Any, numbers: Iterator[float]) -> Any:
    """Return a tree like another one, with these numbers."""
    if like is None:
        return None
    if is_dataclass(like):
        names = [field.name for field in fields(like)]
        return type(like)(**{name: _rebuild(getattr(like, name), numbers) for name in names})  # pyright: ignore[reportCallIssue]
    if isinstance(like, dict):
        return {key: _rebuild(value, numbers) for key, value in like.items()}
    if isinstance(like, tuple):
        return tuple(_rebuild(value, numbers) for value in like)
    return type(like)(next(numbers))


def summarize(
    reports: Sequence[RankReport],
    window: "EpisodeWindow",
    *,
    iteration: int,
    total_steps: int,
    seconds: float,
    learning_rate: float,
    evaluation: dict[str, float | None],
) -> IterationMetrics:
    """Return an iteration's metrics over all ranks, whose episodes join the window."""
    statistics = all_episodes([report.statistics for report in reports])
    window.add(statistics)
    newest = window.means(tuple(statistics.terms))
    rank, wait, collective = slowest(reports)
    warnings = {kind: sum(r.warnings[kind] for r in reports) for kind in reports[0].warnings}

    def mean(name: str) -> float:
        return sum(getattr(report, name) for report in reports) / len(reports)

    return IterationMetrics(
        iteration=iteration,
        world_size=len(reports),
        total_steps=total_steps,
        global_steps_per_second=statistics.steps / seconds,
        mean_return=newest["return"],
        mean_episode_length=newest["length"],
        terms={name: newest[f"reward/{name}"] for name in statistics.terms},
        mean_reward=statistics.rewards / statistics.steps,
        task=_quotients(statistics.metrics),
        losses={
            name: sum(report.losses[name] for report in reports) / len(reports)
            for name in reports[0].losses
        },
        learning_rate=learning_rate,
        action_std=mean("action_std"),
        collect_seconds=mean("collect_seconds"),
        learn_seconds=mean("learn_seconds"),
        slowest_rank=rank,
        wait_seconds=wait,
        collective_seconds=collective,
        nan_resets=warnings.pop(NAN),
        warnings={kind: number for kind, number in warnings.items() if number},
        evaluation=evaluation,
    )


def evaluation_means(
    reports: Sequence[RankReport], term_names: Sequence[str], metric_names: Sequence[str]
) -> tuple[dict[str, float | None], bool]:
    """Return an evaluation's results over all ranks, and whether they are finite.

    They are named by their columns, without `eval/`. All are None where there was no evaluation, or
    where it met numbers that are not finite; only the seconds are then known.
    """
    each = [report.evaluation for report in reports if report.evaluation]
    seconds = sum(report.eval_seconds for report in reports) / len(reports) if each else None
    is_finite = math.isfinite(sum(statistics.returns for statistics in each))
    if not is_finite:
        each = []
    sums = all_episodes(each).metrics if each else dict.fromkeys(metric_names, (0.0, 0.0))
    task = {f"task/{name}": value for name, value in _quotients(sums).items()}
    return {**_means(each, term_names), **task, "seconds": seconds}, is_finite


def all_episodes(each: Sequence[EpisodeStatistics]) -> EpisodeStatistics:
    """Return the sums over all episodes and steps."""
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


def slowest(reports: Sequence[RankReport]) -> tuple[int, float, float]:
    """Find the rank that kept the others waiting.

    Returns:
        The rank that waited least; the mean seconds that the others waited for it; and its own
        seconds in collectives, in which it waited for nobody.
    """
    waited = [report.collective_seconds for report in reports]
    least = min(waited)
    others = len(waited) - 1
    return waited.index(least), (sum(waited) - least) / others - least if others else 0.0, least


class EpisodeWindow:
    """Means over the newest iterations in which, together, at least `episodes` episodes ended.

    Where episodes are long, few end in one iteration: means over one would jump.
    """

    def __init__(self, episodes: int = 100) -> None:
        self._wanted = episodes
        self._newest: deque[EpisodeStatistics] = deque()

    def add(self, statistics: EpisodeStatistics) -> None:
        """Add an iteration, and drop the oldest ones that are no longer needed."""
        if statistics.episodes:
            self._newest.append(statistics)
        count = sum(s.episodes for s in self._newest)
        while self._newest and count - self._newest[0].episodes >= self._wanted:
            count -= self._newest.popleft().episodes

    def state(self) -> list[dict[str, Any]]:
        """Return what `restore` goes on from, as plain data."""
        return [asdict(statistics) for statistics in self._newest]

    def restore(self, state: Sequence[dict[str, Any]], term_names: tuple[str, ...]) -> None:
        """Go on from an earlier window, unless its reward terms were others."""
        newest = [EpisodeStatistics(**entry) for entry in state]
        if all(tuple(statistics.terms) == term_names for statistics in newest):
            self._newest = deque(newest)

    def means(self, term_names: Sequence[str]) -> dict[str, float | None]:
        """Return mean `return`, `length`, and `reward/<name>` of each term; None: no episodes."""
        return _means(self._newest, term_names)


def _means(each: Sequence[EpisodeStatistics], term_names: Sequence[str]) -> dict[str, float | None]:
    count = sum(s.episodes for s in each)
    sums = {
        "return": sum(s.returns for s in each),
        "length": sum(s.lengths for s in each),
        **{f"reward/{name}": sum(s.terms[name] for s in each) for name in term_names},
    }
    return {name: value / count if count else None for name, value in sums.items()}


def _quotients(metrics: Mapping[str, tuple[float, float]]) -> dict[str, float | None]:
    """Return the task's own metrics; None: the divisor is zero."""
    return {name: total / by if by else None for name, (total, by) in metrics.items()}
