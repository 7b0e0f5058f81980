"""`mjfleet report`, `plot` and `compare`: runs as a page, as a picture, and as a table.

They run in the process that the user started and import nothing heavy; matplotlib and jinja2 are
imported once something is drawn.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro

from mjfleet.config.flags import parse_flags
from mjfleet.config.validation import Checked, Folder
from mjfleet.errors import UserError
from mjfleet.runs.metrics_csv import columns_of
from mjfleet.runs.run_lookup import find_run
from mjfleet.tools.output_file import check_output
from mjfleet.tools.report.curves import changing, curves_of
from mjfleet.tools.report.logged_run import MINUTES, STEPS, Row, read_named
from mjfleet.tools.report.page import write_page
from mjfleet.tools.report.picture import Panel, draw
from mjfleet.tools.report.results import as_cell, reward_differences, tables
from mjfleet.tools.report.threshold import Conditions, Threshold, check_columns
from mjfleet.tools.terminal_table import print_table
from mjfleet.utils.console import print_line, printable

SUFFIXES = (".png", ".svg", ".pdf")
AXES = {"steps": STEPS, "minutes": MINUTES}
IN_PICTURE = (
    "mean_return", "mean_episode_length", "mean_reward", "eval/return", "task/", "reward/",
    "loss/value", "action_std", "learning_rate", "global_steps_per_second",
)  # fmt: skip
"""Columns that a picture shows if they change."""


@dataclass(frozen=True, kw_only=True)
class Selection(Checked):
    """Runs, and columns of their metrics."""

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN ...")]
    """Run directories, groups, parts of their names, or `latest`."""
    columns: tuple[str, ...] = ()
    """Columns of metrics.csv to show; one that ends in a slash selects all that begin with it."""
    log_root: Folder = "logs"
    """Folder that holds the run directories."""

    def folders(self) -> dict[str, Path]:
        """Return the run directory or group that each name means."""
        if not self.runs:
            raise UserError("name one or more run directories or groups, such as `latest`.")
        root = Path(self.log_root)
        return {name: find_run(name, name, root, may_be_group=True) for name in self.runs}

    def chosen(self, rows: Sequence[Row]) -> list[str]:
        """Return the columns that are selected; UserError if no run has one of that name."""
        chosen: list[str] = []
        for wanted in self.columns:
            found = columns_of(wanted, known_in(rows))
            if not found:
                known = ", ".join(known_in(rows))
                raise UserError(f"--columns {wanted}: there is no such column; there are {known}.")
            chosen += found
        return list(dict.fromkeys(chosen))


@dataclass(frozen=True, kw_only=True)
class ReportArguments(Selection):
    """Write an HTML page about a run, a group of runs, or several to compare, complete in one file.
    Runs that differ only in their seed are drawn as a mean and its 95% bootstrap interval."""

    output: str | None = None
    """HTML file to write; `None`: report.html in the folder of the last run or group."""
    png: str | None = None
    """Draw the curves into this file, PNG, SVG or PDF, instead of writing a page."""
    x: Literal["steps", "minutes"] = "steps"
    """The picture's x-axis: environment steps of all workers, or minutes of training."""


@dataclass(frozen=True, kw_only=True)
class PlotArguments(Selection):
    """Draw curves of runs; short for `mjfleet report RUN ... --png FILE`."""

    output: str | None = None
    """File to write, PNG, SVG or PDF; `None`: plots/curves.png in the last run or group."""
    x: Literal["steps", "minutes"] = "steps"
    """The x-axis: environment steps of all workers, or minutes of training."""


@dataclass(frozen=True, kw_only=True)
class CompareArguments(Selection):
    """Compare runs and groups of runs: their results, the steps and the time to a threshold, and
    what differs in their configuration. Runs that differ only in their seed are one row: their mean
    and its 95% bootstrap interval."""

    until: Conditions = ()
    """Conditions to be reached, in quotation marks: "task/velocity_error < 0.27". The means over
    ten iterations count. Without any: 90% of the best `mean_return` of all runs, also a mean over
    ten."""
    json: bool = False
    """Print a JSON object instead of tables."""


def report(arguments: Sequence[str]) -> int:
    """Write a page or a picture; return the exit code."""
    parsed = parse_flags(ReportArguments, arguments, "mjfleet report")
    output = check_output("--output", parsed.output) if parsed.output else None
    if parsed.png:
        _draw(parsed, check_output("--png", parsed.png, SUFFIXES), parsed.x)
    if output or not parsed.png:
        folders = parsed.folders()
        # What the user names may be a link, such as /dev/stdout; one in a run is replaced.
        file = output.resolve() if output else folders[parsed.runs[-1]] / "report.html"
        write_page(file, folders, parsed.chosen)
        print_line(f"wrote {output or file}")
    return 0


def plot(arguments: Sequence[str]) -> int:
    """Write a picture; return the exit code."""
    parsed = parse_flags(PlotArguments, arguments, "mjfleet plot")
    output = check_output("--output", parsed.output, SUFFIXES) if parsed.output else None
    _draw(parsed, output or parsed.folders()[parsed.runs[-1]] / "plots" / "curves.png", parsed.x)
    return 0


def compare(arguments: Sequence[str]) -> int:
    """Print tables or a JSON object; return the exit code."""
    parsed = parse_flags(CompareArguments, arguments, "mjfleet compare")
    rows = read_named(parsed.folders())
    if sum(len(row.runs) for row in rows) < 2:
        raise UserError(
            "there is nothing to compare with; name two runs or more, or a group: "
            "mjfleet compare logs/<experiment>/<run> logs/<experiment>/<run>"
        )
    until = [Threshold.parse(text) for text in parsed.until]
    check_columns(until, known_in(rows))
    found, note = tables(rows, parsed.chosen(rows), until), reward_differences(rows)
    if parsed.json:
        runs = {row.name: [str(run.folder) for run in row.runs] for row in rows}
        print(json.dumps({"note": note, "runs": runs, "tables": found}, indent=2, default=asdict))
    else:
        if note:
            print(f"{printable(note)}\n")
        for title, table in found.items():
            names = dict.fromkeys(name for cells in table.values() for name in cells)
            columns = {n: [as_cell(cells[n]) for cells in table.values()] for n in names}
            print_table({"": list(table), **columns}, title)
            print()
    return 0


def known_in(rows: Sequence[Row]) -> list[str]:
    """Return the columns that some run of the rows has."""
    return list(dict.fromkeys(name for row in rows for run in row.runs for name in run.columns))


def _draw(selection: Selection, output: Path, along: str) -> None:
    """Draw the selected columns, or those of IN_PICTURE that change, into a file."""
    rows = read_named(selection.folders())
    curves = curves_of(rows)
    columns = selection.chosen(rows)
    if not columns:
        columns = [column for wanted in IN_PICTURE for column in columns_of(wanted, known_in(rows))]
        columns = [column for column in columns if column in changing(curves)] or columns
    panels = []
    for column in columns:
        lines: dict[str, np.ndarray] = {}
        for row, one in zip(rows, curves, strict=True):
            if column in one.columns:
                line = np.stack([one.along[AXES[along]], *one.columns[column]])
                lines[row.name] = line[:, ~np.isnan(line[1])]
        panels += [Panel(AXES[along], column, lines)] * any(line.size for line in lines.values())
    if not panels:
        raise UserError("the runs have no values in these columns yet.")
    draw(output, panels)
    print_line(f"wrote {output}")
