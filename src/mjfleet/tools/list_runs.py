"""`mjfleet runs`: the runs under a log root, and what has become of them."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path

import tyro

from mjfleet.errors import UserError
from mjfleet.runs.run_lookup import runs_in
from mjfleet.runs.run_summary import Summary, summarise
from mjfleet.utils.console import print_line


@dataclass(frozen=True, kw_only=True)
class RunsArguments:
    """List runs, the newest first."""

    log_root: str = "logs"
    """Folder under which run directories are."""
    json: bool = False
    """Print a JSON list of objects instead of a table."""


def runs(arguments: Sequence[str]) -> int:
    """Print the runs; returns the exit code."""
    parsed = tyro.cli(RunsArguments, args=arguments, prog="mjfleet runs")
    root = Path(parsed.log_root)
    if not root.is_dir():
        raise UserError(f"--log-root {root}: there is no such folder.")
    found = sorted(map(summarise, runs_in(root)), key=lambda r: (r[0], r[1].run), reverse=True)
    summaries = [summary for _, summary in found]
    if parsed.json:
        print_line(json.dumps([asdict(summary) for summary in summaries], indent=2))
        return 0
    if not summaries:
        print_line(f"there is no run in {root}")
        return 0
    _print_table(summaries)
    for summary in summaries:
        if summary.problem:
            print(f"{summary.run}: {summary.problem}", file=sys.stderr)
    return 0


def _print_table(summaries: Sequence[Summary]) -> None:
    from rich import box
    from rich.console import Console
    from rich.filesize import decimal
    from rich.table import Table

    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    for column in ("run", "task", "status"):
        table.add_column(column)
    for column in ("done", "return", "best", "on", "started", "took", "size"):
        table.add_column(column, justify="right")
    for summary in summaries:
        table.add_row(
            summary.run,
            summary.task,
            summary.status,
            f"{summary.iterations}/{summary.max_iterations or '?'}",
            *map(_number, (summary.last_mean_return, summary.best_mean_return)),
            _on(summary),
            _when(summary.started),
            "" if summary.seconds is None else str(timedelta(seconds=round(summary.seconds))),
            decimal(summary.bytes),
        )
    # One line for each run, which a narrow terminal may break: cells of a few letters tell nothing.
    Console(width=400).print(table)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _on(summary: Summary) -> str:
    """The device of a single worker; of several, how many they are and of which kind."""
    devices = summary.devices or [""]
    return devices[0] if summary.workers in (None, 1) else f"{summary.workers} {devices[0][:4]}"


def _when(started: str | None) -> str:
    """A time of run.json as a clock here would show it; the year is in the run's name."""
    return f"{datetime.fromisoformat(started).astimezone():%m-%d %H:%M}" if started else ""
