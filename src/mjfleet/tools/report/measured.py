"""What metrics.csv says of a whole run: its curves, where the time went, and who was slowest."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import Any

from mjfleet.runs.metrics_csv import Rows, seconds_spent, value

MOST_POINTS = 1000
"""Of a curve: more than a screen shows, and few enough for a page of curves to stay small."""
GROUPS = {
    "Return": ("mean_return", "mean_episode_length", "mean_reward", "eval/"),
    "Reward terms": ("reward/",),
    "Task": ("task/",),
    "Learning": ("loss/", "learning_rate", "action_std"),
    "Speed": ("global_steps_per_second", "collect_seconds", "learn_seconds", "collective_seconds",
              "wait_seconds"),
}  # fmt: skip
"""Columns under the headings that they are shown under; a slash: all that begin so."""
OTHERS = "Others"
NO_CURVES = ("iteration", "world_size", "total_steps", "steps_per_second", "slowest_rank")


@dataclass(frozen=True)
class Curve:
    """A column of metrics.csv, and what it comes to."""

    column: str
    values: list[float | None]
    """One for each point of the `Curves` that it belongs to."""
    first: float
    last: float
    least: float
    greatest: float


@dataclass(frozen=True)
class Curves:
    """A run's curves, thinned to a number of points that can be drawn."""

    along: dict[str, list[float]]
    """What may be to the right, by its name: one number for each point, never falling."""
    groups: dict[str, list[Curve]]
    """By heading; columns without a value are left out."""
    iterations_per_point: int
    """How many a point is the mean of."""

    @property
    def every(self) -> list[Curve]:
        """The curves of all groups."""
        return [curve for some in self.groups.values() for curve in some]

    @property
    def data(self) -> dict[str, Any]:
        """What a program needs to draw them, for JSON."""
        return {"along": self.along, "columns": {c.column: c.values for c in self.every}}


@dataclass(frozen=True)
class Spent:
    """A share of the time of training."""

    name: str
    seconds: float
    """Per iteration, on average."""
    share: float
    """Of an iteration, from 0 to 1."""


def curves(columns: Sequence[str], rows: Rows) -> Curves:
    """The curves of all columns that are worth one."""
    each = -(-len(rows) // MOST_POINTS) or 1
    steps = accumulate((value(row, "total_steps") or 0.0 for row in rows), max)
    along = {
        "million steps": [s / 1e6 for s in steps],
        "minutes": [seconds / 60 for seconds in seconds_spent(rows)],
        "iteration": [float(row["iteration"]) for row in rows],
    }
    groups: dict[str, list[Curve]] = {}
    for column in _in_order(columns):
        if (curve := _curve(column, rows, each)) is not None:
            groups.setdefault(_heading(column), []).append(curve)
    # A column that nobody knows, such as a count of troubles, is of interest once it changes.
    others = [c for c in groups.pop(OTHERS, []) if c.least < c.greatest]
    groups |= {OTHERS: others} if others else {}
    ends = range(each - 1, len(rows) + each - 1, each)
    thin = {x: [_short(at[min(i, len(at) - 1)]) for i in ends] for x, at in along.items()}
    return Curves(thin, groups, each)


def time_spent(rows: Rows) -> list[Spent]:
    """Where the time of an iteration went, on average; nothing where nothing was measured."""
    if not rows or not (whole := seconds_spent(rows)[-1] / len(rows)):
        return []
    parts = {
        name: fmean(value(row, f"{column}_seconds") or 0.0 for row in rows)
        for name, column in (("collecting", "collect"), ("learning", "learn"))
    }
    parts["everything else"] = max(0.0, whole - sum(parts.values()))
    return [Spent(name, seconds, seconds / whole) for name, seconds in parts.items()]


def slowest(rows: Rows) -> dict[int, tuple[float, float]]:
    """By rank: its share of the iterations in which it was slowest, and the others' wait then.

    The wait is in seconds, a mean over those iterations and the other ranks.
    """
    waits: dict[int, list[float]] = {}
    for row in rows:
        if (value(row, "world_size") or 1) > 1 and (rank := value(row, "slowest_rank")) is not None:
            waits.setdefault(int(rank), []).append(value(row, "wait_seconds") or 0.0)
    count = sum(map(len, waits.values()))
    return {rank: (len(some) / count, fmean(some)) for rank, some in sorted(waits.items())}


def _in_order(columns: Sequence[str]) -> list[str]:
    """Columns in the order of the groups, the others last."""
    wanted = [name for names in GROUPS.values() for name in names]
    found = [c for name in wanted for c in columns if _is_called(c, name)]
    return [c for c in dict.fromkeys((*found, *columns)) if c not in NO_CURVES]


def _heading(column: str) -> str:
    named = (h for h, names in GROUPS.items() if any(_is_called(column, n) for n in names))
    return next(named, OTHERS)


def _is_called(column: str, name: str) -> bool:
    return column == name or (name.endswith("/") and column.startswith(name))


def _curve(column: str, rows: Rows, each: int) -> Curve | None:
    values = [value(row, column) for row in rows]
    known = [v for v in values if v is not None]
    if not known:
        return None
    points = (values[i : i + each] for i in range(0, len(values), each))
    some = ([v for v in point if v is not None] for point in points)
    means = [_short(fmean(found)) if found else None for found in some]
    return Curve(column, means, known[0], known[-1], min(known), max(known))


def _short(number: float) -> float:
    """To as many digits as a curve can show."""
    return float(f"{number:.7g}")
