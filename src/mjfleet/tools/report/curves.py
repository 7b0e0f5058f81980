"""Curves of a row's runs: their mean at each point, and its interval."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from warnings import catch_warnings

import numpy as np

from mjfleet.errors import UserError
from mjfleet.runs.metrics_csv import columns_of
from mjfleet.tools.report.logged_run import AXES, ITERATION, Rows

INTERVAL = "the 95% bootstrap interval of that mean"
POINTS, FEWEST_POINTS = 600, 100
"""Points of one row's curve, and the fewest where there are many rows."""
NOT_DRAWN = (*AXES, "world_size", "total_steps", "steps_per_second")
Curves = Mapping[str, np.ndarray]
"""Values by column, `(1, points)`. For several runs `(3, points)`: the mean, and the low and high
end of its interval. AXES are always `(1, points)`."""


def curves_of(rows: Rows) -> dict[str, Curves]:
    """Return the curves of each row. A point is a mean over some iterations if there are many."""
    most = max(FEWEST_POINTS, POINTS // max(1, len(rows)))
    found: dict[str, Curves] = {}
    for row, runs in rows.items():
        iterations = [run.columns[ITERATION] for run in runs]
        known = np.unique(np.concatenate(iterations))
        size = -(-len(known) // most)
        shape = len(runs), -(-len(known) // size), size
        curves: dict[str, np.ndarray] = {}
        for name in dict.fromkeys(name for run in runs for name in run.columns):
            values = np.full((len(runs), shape[1] * size), np.nan)
            for line, run, numbers in zip(values, runs, iterations, strict=True):
                line[np.searchsorted(known, numbers)] = run.columns.get(name, np.nan)
            parts = values.reshape(shape)
            if name in AXES:
                # Where a slow run ends, the mean of the others' minutes may be less.
                ends = known_mean(np.fmax.reduce(parts, axis=2), axis=0)
                curves[name] = np.fmax.accumulate(ends)[None]
            else:
                means = known_mean(parts, axis=2)
                curves[name] = means if len(runs) == 1 else bootstrap(means)
        found[row] = curves
    return found


def known_mean(values: np.ndarray, axis: int) -> np.ndarray:
    """Return the means of what is not NaN along an axis; NaN where there is nothing else."""
    count = (~np.isnan(values)).sum(axis)
    return np.where(count > 0, np.nansum(values, axis) / np.maximum(count, 1), np.nan)


def bootstrap(values: np.ndarray) -> np.ndarray:
    """Return mean, low and high `(3, ...)` of values `(runs, ...)`, where some may be NaN.

    The 95% interval is that of the percentile bootstrap (Efron and Tibshirani, An Introduction to
    the Bootstrap, chapter 13): the means of 2000 draws of as many runs, with replacement. The same
    values always give the same interval.
    """
    runs, is_known = len(values), ~np.isnan(values)
    drawn = np.random.default_rng(0).multinomial(runs, [1 / runs] * runs, size=2000)
    whole = np.percentile if is_known.all() else np.nanpercentile  # The latter is slow.
    with np.errstate(invalid="ignore"), catch_warnings(action="ignore"):  # No values: NaN.
        means = np.tensordot(drawn, np.where(is_known, values, 0), axes=1)
        means /= np.tensordot(drawn, is_known, axes=1)
        return np.stack([known_mean(values, axis=0), *whole(means, (2.5, 97.5), axis=0)])


def select(wanted: Iterable[str], known: Sequence[str]) -> list[str]:
    """Return the columns that names mean; UserError for one that means none."""
    chosen: list[str] = []
    for name in wanted:
        if not (found := columns_of(name, known)):
            there = f"there are {', '.join(known)}" if known else "no run has an iteration yet"
            raise UserError(f"there is no column {name}; {there}.")
        chosen += found
    return list(dict.fromkeys(chosen))


def by_heading(columns: Iterable[str]) -> dict[str, list[str]]:
    """Return columns by what comes before the slash in their names."""
    found: dict[str, list[str]] = {}
    for column in columns:
        found.setdefault(column.rpartition("/")[0] or "training", []).append(column)
    return found


def changing(curves: Collection[Curves]) -> list[str]:
    """Return columns to draw: those with different values in these curves, in one or among them."""
    found = []
    for name in dict.fromkeys(n for row in curves for n in row if n not in NOT_DRAWN):
        values = np.concatenate([row[name][0] for row in curves if name in row])
        found += [name] * (len(np.unique(values[~np.isnan(values)])) > 1)
    return found
