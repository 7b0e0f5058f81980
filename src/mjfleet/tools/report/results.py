"""Tables of rows: their results, and what differs between them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mjfleet.tools.report.curves import bootstrap
from mjfleet.tools.report.logged_run import ITERATION, LoggedRun, Rows

CLIP = "eval/clip/"
Table = Mapping[str, Mapping[str, Any]]
"""By the name of a row and of a column: a list with a number or None for each run, or a text."""


def tables(rows: Rows, columns: Sequence[str] = ()) -> dict[str, Table]:
    """Return tables by title: returns, columns, and what differs between the rows."""
    numbered = {f"{place} {name}": runs for place, (name, runs) in enumerate(rows.items(), 1)}
    shown: dict[str, Table] = {"Returns": {name: _returns(runs) for name, runs in numbered.items()}}
    for column in columns:  # Whether less or more is better is not known.
        shown[column] = {name: numbers(runs, column) for name, runs in numbered.items()}
    if clips := _clips(numbered):
        shown["Clips"] = clips
    settings = [runs[0].settings for runs in rows.values()] if len(rows) > 1 else []
    if differing := {
        name: {f"{place}": as_typed(one.get(name)) for place, one in enumerate(settings, 1)}
        for name in dict.fromkeys(name for one in settings for name in one)
        if len({str(one.get(name)) for one in settings}) > 1
    }:
        shown["What differs in the configuration"] = differing
    return shown


def _returns(runs: Sequence[LoggedRun]) -> Mapping[str, Any]:
    mean = numbers(runs, "mean_return")
    return {
        "runs": str(len(runs)),
        "iterations": numbers(runs, ITERATION)["last"],
        "last mean_return": mean["last"],
        "best mean_return": mean["max"],
        "best eval/return": numbers(runs, "eval/return")["max"],
    }


def _clips(rows: Rows) -> Table:
    """Return the newest evaluation of each clip in each row, by metric."""
    table = dict[str, dict[str, Any]]()
    for name, runs in rows.items():
        for column in dict.fromkeys(key for run in runs for key in run.columns):
            if column.startswith(CLIP):
                clip, _, metric = column.removeprefix(CLIP).rpartition("/")
                table.setdefault(f"{name}: {clip}", {})[metric] = numbers(runs, column)["last"]
    return table


def numbers(runs: Sequence[LoggedRun], column: str) -> dict[str, list[float | None]]:
    """Return a column's last, min and max value in each run, or None for a run without values."""
    values = [run.columns.get(column, np.empty(0)) for run in runs]
    known = [run[~np.isnan(run)].tolist() for run in values]
    return {
        "last": [run[-1] if run else None for run in known],
        "min": [min(run, default=None) for run in known],
        "max": [max(run, default=None) for run in known],
    }


def as_cell(value: Any) -> str:
    """Return what a cell of a table shows: four digits of a number, a dash for nothing.

    For several runs that is their mean, the 95% bootstrap interval of that mean, and how many runs
    have a number, if not all do.
    """
    if isinstance(value, list):
        known = [number for number in value if number is not None]
        mean, low, high = map(
            as_cell, bootstrap(np.array(known, float)).tolist() if known else [None] * 3
        )
        interval, count = f" [{low}, {high}]", f" ({len(known)} of {len(value)})"
        return mean + interval * (len(known) > 1) + count * (0 < len(known) < len(value))
    if isinstance(value, int | float):
        return f"{value:,.0f}" if abs(value) >= 9999.5 else f"{value:.4g}"
    return "-" if value is None else str(value)


def as_typed(value: Any) -> str:
    """Return a value of the configuration as it is typed on the command line."""
    if isinstance(value, list):
        return " ".join(map(as_typed, value))
    return str(value) if value != "" else '""'
