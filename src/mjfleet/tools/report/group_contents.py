"""What the page of a group of runs shows: means over its runs, and each run in a line.

Imports nothing heavy.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mjfleet.errors import UserError
from mjfleet.runs.run_json import GROUP_FILE
from mjfleet.runs.run_lookup import members_of, record_of
from mjfleet.runs.run_summary import Summary, summarise, summarise_group
from mjfleet.tools.bootstrap import INTERVAL, Estimate
from mjfleet.tools.logged_run import LoggedRun, read_runs
from mjfleet.tools.report.curves import by_heading, curves_of_group, ends_of
from mjfleet.tools.report.report_contents import read_settings

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
    """Return mean curves by heading, and what they are drawn by."""
    if not runs:
        return {"curves": {}, "along": {}, "entries": []}
    entry = curves_of_group(runs, runs[0].columns)
    columns = entry["columns"]
    curves = {
        heading: [{"column": column, **ends_of(columns[column])} for column in some]
        for heading, some in by_heading(columns).items()
    }
    return {"curves": curves, "along": entry["along"], "entries": [entry]}
