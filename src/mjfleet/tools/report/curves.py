"""Curves of a row's runs: their mean at each point, and its interval."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mjfleet.runs.metrics_csv import columns_of
from mjfleet.tools.report.logged_run import STEPS, Columns, LoggedRun, Row

INTERVAL = "the 95% bootstrap interval of that mean"
RESAMPLES = 2000
PERCENTILES = (2.5, 97.5)
POINTS, FEWEST_POINTS = 600, 100
"""Points of a curve if there is one row, and how few there may be if there are many."""
HEADINGS = {
    "Return": ("mean_return", "mean_episode_length", "mean_reward", "eval/"),
    "Reward terms": ("reward/",),
    "Task": ("task/",),
    "Learning": ("loss/", "learning_rate", "action_std"),
    "Speed": ("global_steps_per_second", "collect_seconds", "learn_seconds", "collective_seconds",
              "wait_seconds"),
}  # fmt: skip
"""Columns below the headings of a page; a slash stands for all that begin so."""
OTHERS = "Others"
NOT_DRAWN = ("iteration", "world_size", "total_steps", "steps_per_second", "slowest_rank")


@dataclass(frozen=True)
class Curves:
    """The curves of a row."""

    along: Columns  # Values for the x-axis, by its name.
    columns: Columns
    """By column of metrics.csv `(1, points)`: values. Of several runs `(3, points)`: the mean, and
    the low and high of its interval."""


def curves_of(rows: Sequence[Row]) -> list[Curves]:
    """Return the curves of each row, with as many points as leave a page small."""
    points = max(FEWEST_POINTS, POINTS // max(1, len(rows)))
    return [_curves(row.runs, points) for row in rows]


def bootstrap(values: np.ndarray) -> np.ndarray:
    """Return mean, low and high `(3, ...)` of values `(runs, ...)`, where some may be NaN.

    The 95% interval is that of the percentile bootstrap (Efron and Tibshirani, An Introduction to
    the Bootstrap, chapter 13): the means of `RESAMPLES` draws of as many runs, with replacement.
    The same values always give the same interval.
    """
    runs, is_known = len(values), ~np.isnan(values)
    drawn = np.random.default_rng(0).multinomial(runs, [1 / runs] * runs, size=RESAMPLES)
    with np.errstate(invalid="ignore"):  # No run that was drawn has a value.
        means = np.tensordot(drawn, np.where(is_known, values, 0), axes=1)
        means /= np.tensordot(drawn, is_known, axes=1)
    whole = np.percentile if is_known.all() else np.nanpercentile  # The latter is slow.
    return np.stack([np.nanmean(values, axis=0), *whole(means, PERCENTILES, axis=0)])


def by_heading(columns: Iterable[str]) -> dict[str, list[str]]:
    """Return the columns that are drawn, below the headings of a page and in its order."""
    left = [column for column in columns if column not in NOT_DRAWN]
    found = {h: [c for n in names for c in columns_of(n, left)] for h, names in HEADINGS.items()}
    named = {column for some in found.values() for column in some}
    found[OTHERS] = [column for column in left if column not in named]
    return {heading: some for heading, some in found.items() if some}


def changing(curves: Sequence[Curves]) -> list[str]:
    """Return the columns that have different values in these curves, in one or among them."""
    values: dict[str, set[float]] = {}
    for one in curves:
        for column, some in one.columns.items():
            values.setdefault(column, set()).update(some[0][~np.isnan(some[0])].tolist())
    return [column for column, found in values.items() if len(found) > 1]


def _curves(runs: Sequence[LoggedRun], points: int) -> Curves:
    """Return the curves of runs. A point is a mean over as many iterations as leave `points`."""
    size = -(-max(len(run.along[STEPS]) for run in runs) // points)
    runs = [_thinned(run, size) for run in runs]
    if len(runs) == 1:
        return Curves(runs[0].along, {name: v[None] for name, v in runs[0].columns.items()})
    x = np.unique(np.concatenate([run.along[STEPS] for run in runs]))

    def at(x: np.ndarray, run: LoggedRun, values: np.ndarray) -> np.ndarray:
        """Return the values of a run at `x`, interpolated; NaN beyond its ends."""
        known = ~np.isnan(values)
        if not known.any():
            return np.full(len(x), np.nan)
        return np.interp(x, run.along[STEPS][known], values[known], left=np.nan, right=np.nan)

    minutes = {n: [at(x, run, run.along[n]) for run in runs] for n in runs[0].along}
    # Where a slow run ends, the mean of the others' minutes may be less.
    along = {name: np.fmax.accumulate(np.nanmean(v, axis=0)) for name, v in minutes.items()}
    columns = {}
    for name in dict.fromkeys(name for run in runs for name in run.columns):
        logged = [(run, run.columns[name]) for run in runs if name in run.columns]
        # Few iterations have an evaluation: between them are no points.
        is_there = np.isin(x, np.concatenate([r.along[STEPS][~np.isnan(v)] for r, v in logged]))
        columns[name] = np.full((3, len(x)), np.nan)
        if is_there.any():
            values = np.stack([at(x[is_there], run, some) for run, some in logged])
            columns[name][:, is_there] = bootstrap(values)
    return Curves(along, columns)


def _thinned(run: LoggedRun, size: int) -> LoggedRun:
    """Return a run with a point for `size` iterations: the means of columns over those."""

    def mean(values: np.ndarray) -> np.ndarray:
        padded = np.pad(values, (0, -len(values) % size), constant_values=np.nan)
        parts = padded.reshape(-1, size)
        count = (~np.isnan(parts)).sum(axis=1)
        return np.where(count > 0, np.nansum(parts, axis=1) / np.maximum(count, 1), np.nan)

    length = len(run.along[STEPS])
    ends = np.minimum(np.arange(size - 1, length + size - 1, size), length - 1)
    return replace(
        run,
        along={name: values[ends] for name, values in run.along.items()},
        columns={name: mean(values) for name, values in run.columns.items()},
    )
