"""The ranks' reports on an iteration, and sums and means over them. Runs in a worker."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

from mjfleet.env import NAN, EpisodeStatistics
from mjfleet.loggers.iteration_metrics import IterationMetrics
from mjfleet.rl.gpu_usage import GpuUsage, usage_columns
from mjfleet.sim.buffer_use import BufferUse, buffer_columns, overflow_texts

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """One rank's numbers of an iteration, which it sends to the other ranks."""

    statistics: EpisodeStatistics
    losses: dict[str, float]
    action_std: float
    warnings: dict[str, int]
    """Number of environments with a warning of the simulation, by kind. All kinds are present."""
    collect_seconds: float
    learn_seconds: float
    collective_seconds: float
    """Time in collectives, including the wait for other ranks. A part of the two above."""
    stop: int  # The signal that this rank has received, or 0.
    diverged: bool
    checksum: int  # See replica_checksum.py.
    evaluation: EpisodeStatistics | None = None  # None on all ranks if no evaluation was due.
    eval_seconds: float = 0.0
    gpu: GpuUsage | None = None  # None on CPUs.
    buffers: BufferUse | None = None  # None on the native engine.


def to_numbers(tree: Any) -> list[float]:
    """Return the numbers in a tree of dataclasses, dictionaries, tuples and None.

    Their order depends only on the names in dictionaries.
    """
    numbers: list[float] = []
    _map_numbers(tree, lambda number: numbers.append(float(number)))
    return numbers


def from_numbers(like: Any, numbers: Iterable[float]) -> Any:
    """Return a tree with the names and types of `like`, and these numbers."""
    remaining = iter(numbers)
    return _map_numbers(like, lambda number: type(number)(next(remaining)))


def total(trees: Sequence[T]) -> T:
    """Return a tree of the sums of each number over some trees, which have the same names."""
    return from_numbers(trees[0], map(sum, zip(*map(to_numbers, trees), strict=True)))


def _map_numbers(tree: Any, function: Callable[[Any], Any]) -> Any:
    """Return a copy of a tree in which `function` has replaced each number."""
    if is_dataclass(tree) and not isinstance(tree, type):
        parts = {field.name: getattr(tree, field.name) for field in fields(tree)}
        return replace(tree, **_map_numbers(parts, function))
    if isinstance(tree, dict):
        return {key: _map_numbers(value, function) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_map_numbers(value, function) for value in tree)
    return None if tree is None else function(tree)


def summarize(
    reports: Sequence[RankReport],
    window: "EpisodeWindow",
    iteration: int,
    total_steps: int,
    seconds: float,
    learning_rate: float,
    evaluation: dict[str, float | None],
) -> IterationMetrics:
    """Return an iteration's metrics over all ranks, and add its episodes to the window."""
    whole, ranks = total(reports), len(reports)
    statistics, warnings = whole.statistics, dict(whole.warnings)
    uses = [report.buffers for report in reports]
    nan_resets = warnings.pop(NAN)
    window.add(statistics)
    newest = window.means(tuple(statistics.terms))
    rank, wait, collective = slowest(reports)
    return IterationMetrics(
        iteration=iteration,
        world_size=ranks,
        total_steps=total_steps,
        global_steps_per_second=statistics.steps / seconds,
        mean_return=newest["return"],
        mean_episode_length=newest["length"],
        terms={name: newest[f"reward/{name}"] for name in statistics.terms},
        # A step that reset its environment has no reward.
        mean_reward=statistics.rewards / max(1, statistics.steps - nan_resets),
        task=_quotients(statistics.metrics),
        losses={name: loss / ranks for name, loss in whole.losses.items()},
        learning_rate=learning_rate,
        action_std=whole.action_std / ranks,
        collect_seconds=whole.collect_seconds / ranks,
        learn_seconds=whole.learn_seconds / ranks,
        slowest_rank=rank,
        wait_seconds=wait,
        collective_seconds=collective,
        nan_resets=nan_resets,
        warnings={kind: number for kind, number in warnings.items() if number},
        overflows=overflow_texts(uses, [report.warnings for report in reports]),
        evaluation=evaluation,
        buffers=buffer_columns(uses),
        gpu=usage_columns([report.gpu for report in reports]),
    )


def evaluation_means(
    reports: Sequence[RankReport],
    term_names: Sequence[str],
    metric_names: Sequence[str],
    levels: Sequence[int],
) -> tuple[dict[str, float | None], bool]:
    """Return an evaluation's results over all ranks by column name without `eval/`.

    Also returns whether they are finite. If they are not, or without an evaluation, they are None;
    after an evaluation the seconds are always known.
    """
    whole = total(reports)
    ended = whole.evaluation
    seconds = whole.eval_seconds / len(reports) if ended else None
    is_finite = ended is None or math.isfinite(ended.returns)
    each, metrics = [], dict.fromkeys(metric_names, (0.0, 0.0))
    returns: Mapping[Any, tuple[float, float]] = dict.fromkeys(levels, (0.0, 0.0))
    if ended and is_finite:
        each, metrics, returns = [ended], ended.metrics, ended.levels
    by_level = {f"level/{level}": value for level, value in _quotients(returns).items()}
    task = {f"task/{name}": value for name, value in _quotients(metrics).items()}
    return {**_means(each, term_names), **by_level, **task, "seconds": seconds}, is_finite


def slowest(reports: Sequence[RankReport]) -> tuple[int, float, float]:
    """Find the rank that kept the others waiting.

    Returns:
        The rank that waited least; the mean seconds that the others waited for it; and its own
        seconds in collectives, which include no wait.
    """
    waited = [report.collective_seconds for report in reports]
    least = min(waited)
    others = len(waited) - 1
    return waited.index(least), (sum(waited) - least) / others - least if others else 0.0, least


class EpisodeWindow:
    """Means over the newest iterations in which, together, at least `episodes` episodes ended.

    Few long episodes end in one iteration, so means over a single one would be noisy.
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
        """Return the window as plain data for `restore`."""
        return [asdict(statistics) for statistics in self._newest]

    def restore(self, state: Sequence[dict[str, Any]], term_names: tuple[str, ...]) -> None:
        """Restore an earlier window, unless its reward terms were different."""
        newest = [EpisodeStatistics(**entry) for entry in state]
        if all(tuple(statistics.terms) == term_names for statistics in newest):
            self._newest = deque(newest)

    def means(self, term_names: Sequence[str]) -> dict[str, float | None]:
        """Return the mean `return`, `length` and `reward/<name>`. None: no episode has ended."""
        return _means(self._newest, term_names)


def _means(each: Sequence[EpisodeStatistics], term_names: Sequence[str]) -> dict[str, float | None]:
    count = sum(s.episodes for s in each)
    sums = {
        "return": sum(s.returns for s in each),
        "length": sum(s.lengths for s in each),
        **{f"reward/{name}": sum(s.terms[name] for s in each) for name in term_names},
    }
    return {name: value / count if count else None for name, value in sums.items()}


def _quotients(metrics: Mapping[T, tuple[float, float]]) -> dict[T, float | None]:
    """Return quotients of sums. None: the divisor is zero."""
    return {name: sums[0] / sums[1] if sums[1] else None for name, sums in metrics.items()}
