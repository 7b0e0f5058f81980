"""`mjfleet runs`: the runs under a log root and their status. Imports nothing heavy."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path

from mjfleet.cli.flags import parse_flags
from mjfleet.config.validation import Checked, Folder
from mjfleet.errors import UserError
from mjfleet.runs.run_lookup import runs_in
from mjfleet.runs.run_summary import Summary, summarise
from mjfleet.utils.console import printable

LONGEST = 200  # Characters of a cell.


@dataclass(frozen=True, kw_only=True)
class RunsArguments(Checked):
    """List runs, the newest first."""

    log_root: Folder = "logs"
    """Folder that holds the run directories."""
    json: bool = False
    """Print a JSON list of objects instead of a table."""


def runs(arguments: Sequence[str]) -> int:
    parsed = parse_flags(RunsArguments, arguments, "mjfleet runs")
    root = Path(parsed.log_root)
    if not root.is_dir():
        raise UserError(f"--log-root {root}: there is no such folder.")
    found = sorted(map(summarise, runs_in(root)), key=lambda r: (r[0], r[1].run), reverse=True)
    summaries = [summary for _, summary in found]
    if parsed.json:
        print(json.dumps([asdict(summary) for summary in summaries], indent=2))
    elif summaries:
        _print_table(summaries)
        for summary in summaries:
            if summary.problem:
                print(printable(f"{summary.run}: {summary.problem}"), file=sys.stderr)
    else:
        print(f"there is no run in {root}")
    return 0


def _print_table(summaries: Sequence[Summary]) -> None:
    from rich import box
    from rich.console import Console
    from rich.filesize import decimal
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    for column in ("run", "task", "status"):
        table.add_column(column)
    for column in ("done", "return", "best", "on", "started", "took", "size"):
        table.add_column(column, justify="right")
    for summary in summaries:
        returns = (summary.last_mean_return, summary.best_mean_return)
        devices, workers = summary.devices or [""], summary.workers
        started = summary.started and datetime.fromisoformat(summary.started).astimezone()
        row = (
            summary.run,
            summary.task or "",
            summary.status,
            f"{summary.iterations}/{summary.max_iterations or '?'}",
            *("" if value is None else f"{value:.4g}" for value in returns),
            devices[0] if workers in (None, 1) else f"{workers} {devices[0][:4]}",
            f"{started:%m-%d %H:%M}" if started else "",  # The year is in the run's name.
            "" if summary.seconds is None else str(timedelta(seconds=round(summary.seconds))),
            decimal(summary.bytes),
        )
        # A file may have any text: nothing of it is markup, or acts on the terminal.
        table.add_row(*(Text(printable(cell[:LONGEST]).replace("\n", " ")) for cell in row))
    # Each run gets one line, which a narrow terminal wraps: narrow cells could not be read.
    Console(width=400).print(table)
