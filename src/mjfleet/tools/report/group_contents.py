"""What the page of a group of runs shows: means over its runs, and each run in a line.

Imports nothing heavy.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mjfleet.errors import UserError
from mjfleet.runs.bootstrap import INTERVAL, Estimate, bootstrap_interval
from mjfleet.runs.logged_run import LoggedRun, read_runs
from mjfleet.runs.metrics_csv import value
from mjfleet.runs.run_json import GROUP_FILE
from mjfleet.runs.run_lookup import members_of, record_of
from mjfleet.runs.run_summary import Summary, summarise, summarise_group
from mjfleet.tools.report.report_contents import headings_of, read_settings, rounded

POINTS = 500  # Of a curve.
RETURNS = {
    "mean return": "last_mean_return",
    "best mean return": "best_mean_return",
    "best evaluated return": "best_eval_return",
}
"""Names of a summary's returns."""


def read_group_contents(group: Path) -> dict[str, Any]:
    """Return the variables of page.html for a group. What cannot be read is a problem on it."""
    members = [summarise(run.resolve())[1] for run in members_of(group)]
    _, summary = summarise_group(group.resolve(), members)
    settings, problems = read_settings(group)
    problems += [summary.problem] if summary.problem else []
    record, runs = {}, list[LoggedRun]()
    try:
        record = record_of(group, GROUP_FILE)
        runs = read_runs(group)
    except UserError as error:
        problems.append(str(error))
    return {
        "command": "report",
        "summary": summary,
        "record": record,
        "problems": problems,
        "settings": settings,
        "members": members,
        "estimates": _estimates(members),
        "interval": INTERVAL,
        "averaged": [run.name for run in runs],
        "iterations_per_point": 1,
        **_mean_curves(runs),
    }


def _estimates(members: Sequence[Summary]) -> dict[str, Estimate]:
    """Return the means of the members' returns, as far as there are any."""
    values = {name: [getattr(one, field) for one in members] for name, field in RETURNS.items()}
    known = {name: [v for v in some if v is not None] for name, some in values.items()}
    return {name: found for name, some in known.items() if (found := Estimate.of(some))}


def _mean_curves(runs: Sequence[LoggedRun]) -> dict[str, Any]:
    """Return mean curves by heading, and their intervals, over the steps that all runs have done.

    A point has a value where all runs have one.
    """
    import numpy as np

    steps = [[(value(row, "total_steps") or 0.0) / 1e6 for row in run.rows] for run in runs]
    if not runs:
        return {"curves": {}, "along": {}, "columns": {}, "entries": []}
    first, last = max(some[0] for some in steps), min(some[-1] for some in steps)
    along = np.linspace(first, max(first, last), POINTS)
    curves, columns, bands = dict[str, list[dict[str, Any]]](), {}, {}
    for column, heading in headings_of(runs[0].columns).items():
        lines = []
        for run, at in zip(runs, steps, strict=True):
            known = [(x, v) for x, row in zip(at, run.rows, strict=True)
                     if (v := value(row, column)) is not None]  # fmt: skip
            if known:
                points, numbers = np.array(known).T
                lines.append(np.interp(along, points, numbers, np.nan, np.nan))
        if len(lines) < len(runs):
            continue
        values = np.stack(lines)
        mean = values.mean(axis=0)
        known = mean[np.isfinite(mean)].tolist()
        if not known:
            continue
        ends = {"first": known[0], "last": known[-1], "least": min(known), "greatest": max(known)}
        curves.setdefault(heading, []).append({"column": column, **ends})
        columns[column] = _as_json(mean)
        if len(runs) > 1:
            bands[column] = [_as_json(bound) for bound in bootstrap_interval(values)]
    steps = {"million steps of each run": _as_json(along)}
    low, high = ({column: both[i] for column, both in bands.items()} for i in (0, 1))
    entry = {"along": steps, "columns": columns, "low": low, "high": high}
    return {"curves": curves, "along": steps, "columns": columns, "entries": [entry]}


def _as_json(numbers: Any) -> list[float | None]:
    return [rounded(number) if math.isfinite(number) else None for number in numbers.tolist()]
