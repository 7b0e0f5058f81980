"""Curves of a run, and means of runs that differ only in their seed, for pages.

Imports nothing heavy.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from statistics import fmean
from typing import Any

from mjfleet.runs.metrics_csv import Rows, columns_of, seconds_spent, value
from mjfleet.tools.bootstrap import Line, mean_curve
from mjfleet.tools.logged_run import LoggedRun

MAX_POINTS = 1000  # Of a curve: as many as a screen shows, so that the page stays small.
FEW_POINTS = 300  # Of each of several curves in a chart.
STEPS = "million steps"
GROUPS = {
    "Return": ("mean_return", "mean_episode_length", "mean_reward", "eval/"),
    "Reward terms": ("reward/",),
    "Task": ("task/",),
    "Learning": ("loss/", "learning_rate", "action_std"),
    "Speed": ("global_steps_per_second", "collect_seconds", "learn_seconds", "collective_seconds",
              "wait_seconds"),
}  # fmt: skip
"""Headings of curves and the columns below them; a slash stands for all that begin so."""
OTHERS = "Others"
NO_CURVES = ("iteration", "world_size", "total_steps", "steps_per_second", "slowest_rank")
Values = Sequence[float | None]
Curves = Mapping[str, Any]
"""An entry of `write_page`: `along`, `columns`, `low` and `high`."""


def by_heading(known: Iterable[str]) -> dict[str, list[str]]:
    """Return the columns that are drawn, below the headings of a page and in its order."""
    left = [column for column in known if column not in NO_CURVES]
    found = {h: [c for n in names for c in columns_of(n, left)] for h, names in GROUPS.items()}
    named = {column for some in found.values() for column in some}
    found[OTHERS] = [column for column in left if column not in named]
    return {heading: some for heading, some in found.items() if some}


def curves_of(known: Iterable[str], rows: Rows, each: int = 0) -> dict[str, Any]:
    """Return the curves by heading, those without values left out, and choices for the x-axis.

    A point is the mean over `each` iterations; 0: over as many as leave at most `MAX_POINTS`.
    """
    each = each or -(-len(rows) // MAX_POINTS) or 1
    steps = accumulate((value(row, "total_steps") or 0.0 for row in rows), max)
    along = {
        STEPS: [s / 1e6 for s in steps],
        "minutes": [seconds / 60 for seconds in seconds_spent(rows)],
        "iteration": [float(row["iteration"]) for row in rows],
    }
    curves: dict[str, list[dict[str, Any]]] = {}
    columns: dict[str, list[float | None]] = {}
    for heading, some in by_heading(known).items():
        for column in some:
            values = [value(row, column) for row in rows]
            if ends := ends_of(values):
                curves.setdefault(heading, []).append({"column": column, **ends})
                columns[column] = _means(values, each)
    ends = range(each - 1, len(rows) + each - 1, each)
    thin = {x: [_rounded(at[min(i, len(at) - 1)]) for i in ends] for x, at in along.items()}
    return {"curves": curves, "along": thin, "columns": columns, "iterations_per_point": each}


def ends_of(values: Values) -> dict[str, float]:
    """Return the first, last, smallest and largest value, and whether these differ, if any."""
    known = [v for v in values if v is not None]
    if not known:
        return {}
    low, high = min(known), max(known)
    return {"first": known[0], "last": known[-1], "min": low, "max": high, "changes": low < high}


def curves_of_group(runs: Sequence[LoggedRun], columns: Sequence[str]) -> Curves:
    """Return the curves of a run, or the means over several and their intervals."""
    each = -(-max(len(run.rows) for run in runs) // FEW_POINTS)
    drawn = [curves_of(columns, run.rows, each) for run in runs]
    if len(drawn) == 1:
        return {name: drawn[0][name] for name in ("along", "columns")}
    x = sorted({at for curves in drawn for at in curves["along"][STEPS]})

    def mean(part: str, name: str) -> tuple[list[float], ...]:
        lines = [points_of(each["along"][STEPS], each[part].get(name, [])) for each in drawn]
        return mean_curve([line for line in lines if line[0]], x)

    found: dict[str, dict[str, list[float | None]]] = {"low": {}, "columns": {}, "high": {}}
    for column in dict.fromkeys(name for curves in drawn for name in curves["columns"]):
        for curve, values in zip(found.values(), mean("columns", column), strict=True):
            curve[column] = _plain(values)
    # Where a slow run ends, the mean of the others' minutes may be less.
    along = {n: _plain(accumulate(mean("along", n)[1], max)) for n in drawn[0]["along"]}
    return {**found, "along": along}


def changing(entries: Sequence[Curves]) -> list[str]:
    """Return the columns that have different values in these curves, in one or among them."""
    values: dict[str, set[float]] = {}
    for curves in entries:
        for column, some in curves["columns"].items():
            values.setdefault(column, set()).update(v for v in some if v is not None)
    return [column for column, found in values.items() if len(found) > 1]


def points_of(x: Sequence[float], values: Values) -> Line:
    """Return the points that have a value."""
    known = [(at, v) for at, v in zip(x, values, strict=False) if v is not None]
    return [at for at, _ in known], [v for _, v in known]


def _means(values: Values, each: int) -> list[float | None]:
    """Return the means over so many values next to each other."""
    points = (values[i : i + each] for i in range(0, len(values), each))
    some = ([v for v in point if v is not None] for point in points)
    return [_rounded(fmean(known)) if known else None for known in some]


def _plain(values: Iterable[float]) -> list[float | None]:
    """Return numbers as JSON has them: None for one that is not there."""
    return [None if math.isnan(v) else _rounded(v) for v in values]


def _rounded(number: float) -> float:
    """Round to as many digits as a curve can show."""
    return float(f"{number:.7g}")
