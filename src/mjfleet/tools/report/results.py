"""Tables of rows: their results, when they reached a threshold, and what differs between them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from mjfleet.tools.report.curves import bootstrap
from mjfleet.tools.report.logged_run import ITERATION, MINUTES, STEPS, LoggedRun, Row, differences
from mjfleet.tools.report.threshold import Threshold, reached, window_means

GOOD = 0.9  # Share of the best return, which the runs are to reach if nothing else is asked for.
OF: Mapping[str, Callable[[np.ndarray], float]] = {
    "first": itemgetter(0), "last": itemgetter(-1), "best": max, "min": min, "max": max,
}  # fmt: skip
"""What a column of metrics.csv is summarised to."""
RETURN = "mean_return"
RETURNS = {RETURN: ("last", "best"), "eval/return": ("best",)}
REWARDS = re.compile(r"task|code|env\..*(weight|reward|penalty|cost).*")
"""Settings that decide what a return is the sum of, by their names."""
REWARD_SETTINGS = {"task": "the task", "code": "the task's code"}
Table = Mapping[str, Mapping[str, Any]]
"""By the name of a row and of a column: an Estimate, another value, or None for no value."""


@dataclass(frozen=True)
class Estimate:
    """The mean of a number over several runs, and the 95% bootstrap interval of that mean."""

    mean: float
    low: float | None  # None: one run has the number.
    high: float | None
    runs: int  # That have the number.
    of: int  # All runs.

    @classmethod
    def over(cls, values: Sequence[float | None]) -> "Estimate | None":
        """Return the estimate from a value of each run; None: no run has one."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        mean, low, high = bootstrap(np.array(known)).tolist()
        bounds = (low, high) if len(known) > 1 else (None, None)
        return cls(mean, *bounds, len(known), len(values))

    def __str__(self) -> str:
        parts = [as_cell(self.mean)]
        if self.low is not None:
            parts.append(f"[{as_cell(self.low)}, {as_cell(self.high)}]")
        parts += [f"({self.runs} of {self.of})"] * (self.runs < self.of)
        return " ".join(parts)


def summaries(row: Row, column: str, keys: Sequence[str]) -> dict[str, Estimate | None]:
    """Return what a column of metrics.csv is summarised to by `OF` of each key."""
    values = [run.columns.get(column, np.empty(0)) for run in row.runs]
    known = [some[~np.isnan(some)] for some in values]
    return {
        key: Estimate.over([float(OF[key](some)) if len(some) else None for some in known])
        for key in keys
    }


def reward_differences(rows: Sequence[Row]) -> str | None:
    """Return why the runs' returns are not of the same rewards; None: they are, as far as known."""
    runs = [run for row in rows for run in row.runs]
    names = {frozenset(c for c in run.columns if c.startswith("reward/")) for run in runs}
    known = [REWARD_SETTINGS.get(n, n) for n in differences(runs) if REWARDS.fullmatch(n)]
    known += ["the reward terms"] * (len(names) > 1)
    if not known:
        return None
    return f"Returns may be of different rewards, since these differ: {', '.join(known)}."


def tables(
    rows: Sequence[Row], metrics: Sequence[str] = (), until: Sequence[Threshold] = ()
) -> dict[str, Table]:
    """Return tables by title: returns, metrics, thresholds, and what differs between the rows.

    Without thresholds, it is a share of the best return.
    """
    names = {f"{place} {row.name}": row for place, row in enumerate(rows, 1)}

    def returns(row: Row) -> dict[str, Any]:
        lengths = [int(run.along[ITERATION][-1]) for run in row.runs]
        ends = " to ".join(map(str, sorted({min(lengths), max(lengths)})))
        best = {
            f"{k} {c}": v for c, ks in RETURNS.items() for k, v in summaries(row, c, ks).items()
        }
        return {"runs": len(row.runs), "iterations": ends, **best}

    shown: dict[str, Table] = {"Returns": {name: returns(row) for name, row in names.items()}}
    for metric in metrics:  # Whether less or more is better is not known.
        keys = ("last", "min", "max")
        shown[metric] = {name: summaries(row, metric, keys) for name, row in names.items()}
    if wanted := until or share_of_best(rows):
        title = f"Until {' and '.join(map(str, wanted))}"
        title += "" if until else f" ({GOOD:.0%} of the best)"
        shown[title] = {name: _until(row.runs, wanted) for name, row in names.items()}
    firsts = [row.runs[0] for row in rows]
    if differing := differences(firsts):
        shown["What differs in the configuration"] = {
            name: {
                f"{place}": as_typed(run.settings[name]) if name in run.settings else None
                for place, run in enumerate(firsts, 1)
            }
            for name in differing
        }
    return shown


def share_of_best(rows: Sequence[Row]) -> list[Threshold]:
    """Return the threshold for which nobody asked; none if no run is long enough to reach one."""
    returns = [run.columns[RETURN] for row in rows for run in row.runs if RETURN in run.columns]
    means = np.concatenate([[], *(window_means(RETURN, some) for some in returns)])
    if np.isnan(means).all():
        return []
    best = np.nanmax(means)
    good = best - (1 - GOOD) * abs(best)  # A tenth worse, below zero too.
    return [Threshold(RETURN, ">", float(f"{good:.4g}"))]


def _until(runs: Sequence[LoggedRun], wanted: Sequence[Threshold]) -> Mapping[str, Any]:
    """Return the steps and minutes of the runs that reached the thresholds."""
    ends = [(run, reached(wanted, run.columns)) for run in runs]
    return {
        name: Estimate.over([e if e is None else float(run.along[name][e]) for run, e in ends])
        for name in (STEPS, MINUTES)
    }


def as_cell(value: Any) -> str:
    """Return what a cell of a table shows: four digits of a number, a dash for nothing."""
    if isinstance(value, int | float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    return "-" if value is None else str(value)


def as_typed(value: Any) -> str:
    """Return a value of the configuration as it is typed on the command line."""
    if isinstance(value, list):
        return " ".join(map(as_typed, value))
    return str(value) if value != "" else '""'
