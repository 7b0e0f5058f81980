"""`mjfleet report`, `plot` and `compare`: runs as a page, as a picture, and as tables."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro

from mjfleet.config.flags import parse_flags
from mjfleet.config.validation import Checked, Folder
from mjfleet.errors import UserError
from mjfleet.runs.find_run import find_run
from mjfleet.tools.output_file import check_output
from mjfleet.tools.report.curves import changing, curves_of, select
from mjfleet.tools.report.logged_run import MINUTES, STEPS, Rows, read_named
from mjfleet.tools.report.page import write_page
from mjfleet.tools.report.picture import Panel, draw
from mjfleet.tools.report.results import as_cell, tables
from mjfleet.tools.terminal_table import print_table
from mjfleet.utils.console import print_line

SUFFIXES = (".png", ".svg", ".pdf")


@dataclass(frozen=True, kw_only=True)
class Selection(Checked):
    """Runs, and columns of their metrics."""

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN ...")]
    """Run directories, groups, parts of their names, or `latest`."""
    columns: tuple[str, ...] = ()
    """Columns of metrics.csv to show; one that ends in a slash selects all that begin with it."""
    log_root: Folder = "logs"
    """Folder that holds the run directories."""

    def read(self) -> tuple[dict[str, Path], Rows, list[str]]:
        """Return the folder that each name means, the rows of their runs, and columns to show."""
        if not self.runs:
            raise UserError("name one or more run directories or groups, such as `latest`.")
        root = Path(self.log_root)
        folders = {name: find_run(name, name, root, may_be_group=True) for name in self.runs}
        rows = read_named(folders)
        known = dict.fromkeys(n for row in rows.values() for run in row for n in run.columns)
        return folders, rows, select(self.columns, list(known))


@dataclass(frozen=True, kw_only=True)
class ReportArguments(Selection):
    """Write an HTML page, complete in one file, about a run, a group of runs, or several of these.
    A seed group is drawn as the mean of its runs and its 95% bootstrap interval."""

    output: str | None = None
    """HTML file to write; `None`: report.html in the folder of the last run or group."""
    png: str | None = None
    """Draw the curves into this file, PNG, SVG or PDF, instead of writing a page."""


@dataclass(frozen=True, kw_only=True)
class PlotArguments(Selection):
    """Draw curves of runs; short for `mjfleet report RUN ... --png FILE`."""

    output: str | None = None
    """File to write, PNG, SVG or PDF; `None`: plots/curves.png in the last run or group."""
    x: Literal["steps", "minutes"] = "steps"
    """The x-axis: environment steps of all workers, or minutes of training."""


@dataclass(frozen=True, kw_only=True)
class CompareArguments(Selection):
    """Compare runs and groups of runs: their results, and what differs in their configuration. A
    seed group is one row: the mean of its runs and its 95% bootstrap interval."""

    json: bool = False
    """Print a JSON object instead of tables."""


def report(arguments: Sequence[str]) -> int:
    """Write a page or a picture; return the exit code."""
    parsed = parse_flags(ReportArguments, arguments, "mjfleet report")
    output = check_output("--output", parsed.output, [".html"]) if parsed.output else None
    picture = check_output("--png", parsed.png, SUFFIXES) if parsed.png else None
    folders, rows, columns = parsed.read()
    if picture:
        return _draw(picture, rows, columns, STEPS)
    # What the user names may be a link, such as /dev/stdout; one in a run is replaced.
    file = output.resolve() if output else folders[parsed.runs[-1]] / "report.html"
    write_page(file, [*folders.values()], rows, columns)
    print_line(f"wrote {output or file}")
    return 0


def plot(arguments: Sequence[str]) -> int:
    """Write a picture; return the exit code."""
    parsed = parse_flags(PlotArguments, arguments, "mjfleet plot")
    output = check_output("--output", parsed.output, SUFFIXES) if parsed.output else None
    folders, rows, columns = parsed.read()
    output = output or folders[parsed.runs[-1]] / "plots" / "curves.png"
    return _draw(output, rows, columns, STEPS if parsed.x == "steps" else MINUTES)


def compare(arguments: Sequence[str]) -> int:
    """Print tables or a JSON object; return the exit code."""
    parsed = parse_flags(CompareArguments, arguments, "mjfleet compare")
    _, rows, columns = parsed.read()
    if sum(map(len, rows.values())) < 2:
        raise UserError(
            "there is nothing to compare; name two runs with iterations or more, or a group: "
            "mjfleet compare logs/<experiment>/<run> logs/<experiment>/<run>"
        )
    found = tables(rows, columns)
    if parsed.json:
        runs = {name: [str(run.folder) for run in row] for name, row in rows.items()}
        print(json.dumps({"runs": runs, "tables": found}, indent=2))
        return 0
    for title, table in found.items():
        names = dict.fromkeys(name for cells in table.values() for name in cells)
        cells = {n: [as_cell(row[n]) for row in table.values()] for n in names}
        print_table({"": list(table), **cells}, title)
        print()
    return 0


def _draw(output: Path, rows: Rows, columns: Sequence[str], x: str) -> int:
    """Draw columns into a file, where none are named those that change; return the exit code."""
    curves, panels = curves_of(rows), []
    for column in columns or changing(curves.values()):
        lines: dict[str, np.ndarray] = {}
        for name, row in curves.items():
            if column in row:
                line = np.concatenate([row[x], row[column]])
                lines[name] = line[:, ~np.isnan(line[1])]
        if any(line.size for line in lines.values()):
            panels.append(Panel(x, column, lines))
    if not panels:
        what = "these columns have no values" if columns else "no column has different values"
        raise UserError(f"there is nothing to draw: {what} yet.")
    draw(output, panels)
    print_line(f"wrote {output}")
    return 0
