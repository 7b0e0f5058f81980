"""`mjfleet compare RUN ...`: runs side by side, on the terminal, as a page, or as JSON.

Runs in the process that the user started and imports nothing heavy.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from mjfleet.cli.flags import parse_flags
from mjfleet.config.validation import Checked, Folder
from mjfleet.errors import UserError
from mjfleet.runs.metrics_csv import columns_of
from mjfleet.runs.run_lookup import find_run
from mjfleet.tools.compare.comparison import (
    GOOD,
    RETURN,
    Table,
    compare_groups,
    reward_differences,
    share_of_best,
    sparklines,
    tables,
)
from mjfleet.tools.logged_run import LoggedRun, differences, group_runs, read_runs
from mjfleet.tools.output_file import check_output
from mjfleet.tools.report.curves import Curves, by_heading, changing, curves_of_group
from mjfleet.tools.report.page_file import write_page
from mjfleet.tools.threshold import Conditions, Threshold, check_columns
from mjfleet.utils.console import print_line, printable

if TYPE_CHECKING:
    import rich.table
    import rich.text

LONGEST = 200  # Characters of a cell.
ONE_LINE = 400  # Columns, which a row does not exceed.


@dataclass(frozen=True, kw_only=True)
class CompareArguments(Checked):
    """Compare runs and groups of runs: their results, the steps and the time to a threshold, what
    differs in their configuration, and curves. Runs that differ only in their seed are one row:
    their mean and its 95% bootstrap interval."""

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN ...")]
    """Run directories, groups, parts of their names, or `latest`."""
    metric: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Another column of metrics.csv to compare; may be given several times. One that ends in a
    slash selects all that begin with it."""
    until: Conditions = ()
    """Conditions to be reached, in quotation marks: "task/velocity_error < 0.27". The means over
    ten iterations count. Without any: 90% of the best `mean_return` of all runs,
    also a mean over ten."""
    output: str | None = None
    """File to write, HTML: the comparison and curves of all metrics as one page."""
    log_root: Folder = "logs"
    """Folder that holds the run directories."""
    json: bool = False
    """Print a JSON object instead of tables."""


def compare(arguments: Sequence[str]) -> int:
    parsed = parse_flags(CompareArguments, arguments, "mjfleet compare")
    output = check_output("--output", parsed.output, (".html",)) if parsed.output else None
    named = _read(parsed.runs, Path(parsed.log_root))
    runs = [run for some in named.values() for run in some]
    known = list(dict.fromkeys(column for run in runs for column in run.columns))
    metrics: dict[str, None] = {}  # Each once.
    for wanted in parsed.metric:
        metrics |= (found := dict.fromkeys(columns_of(wanted, known)))
        if not found:
            raise UserError(f"--metric {wanted}: there is no such column; of these: {known}.")
    until = [Threshold.parse(text) for text in parsed.until]
    check_columns(until, known)
    until = until or share_of_best(runs)
    title = f"Until {' and '.join(map(str, until))}" if until else ""
    title += "" if parsed.until or not until else f" ({GOOD:.0%} of the best)"
    groups = _named_groups(named)
    rows = compare_groups(groups, list(metrics), until)
    shown = tables(rows, list(metrics), title)
    note = reward_differences(runs)
    if output:
        entries = [curves_of_group(group, known) for group in groups.values()]
        contents = {"command": "compare", "runs": runs, "rows": rows, "tables": shown, "note": note,
                    "tasks": list(dict.fromkeys(str(run.settings["task"]) for run in runs)),
                    "headings": by_heading(changing(entries)), "entries": entries}  # fmt: skip
        write_page(output.resolve(), "compare.html", contents)
    if parsed.json:
        differing = differences([run.settings for run in runs])
        found = {"until": list(map(str, until)), "note": note}
        found["rows"] = [row.as_dict(differing) for row in rows]
        print(json.dumps(found, indent=2, default=asdict))
    else:
        _print(shown, note, [curves_of_group(group, [RETURN]) for group in groups.values()])
        if output:
            print_line(f"wrote {output}")
    return 0


def _read(names: Sequence[str], log_root: Path) -> dict[str, list[LoggedRun]]:
    """Read the runs that each word means.

    Raises:
        UserError: they are fewer than two, one is named twice, or one cannot be read.
    """
    named: dict[str, list[LoggedRun]] = {}
    words: dict[Path, str] = {}  # By the run that they mean.
    for name in names:
        runs = read_runs(find_run(name, name, log_root, may_be_group=True))
        for run in runs:
            if (place := run.folder.resolve()) in words:
                raise UserError(f"{name} and {words[place]} mean the same run; name it once.")
            words[place] = name
        named[name] = runs
    if len(words) < 2:
        raise UserError(
            "there is nothing to compare with; name two runs or more, or a group: "
            "mjfleet compare logs/<experiment>/<run> logs/<experiment>/<run>"
        )
    return named


def _named_groups(named: Mapping[str, list[LoggedRun]]) -> dict[str, list[LoggedRun]]:
    """Return the runs of each row by the arguments that named them.

    Rows of the same argument, such as a sweep, are told apart by their settings.
    """
    groups = group_runs([run for some in named.values() for run in some])
    if len(groups) == 1:  # Only the seeds differ: what was named is told apart.
        return dict(named)
    called = {run.folder: name for name, runs in named.items() for run in runs}
    each = [dict.fromkeys(called[run.folder] for run in runs) for runs in groups.values()]
    names = [", ".join(some) for some in each]
    return {
        name if names.count(name) == 1 else f"{name} ({label})": runs
        for name, (label, runs) in zip(names, groups.items(), strict=True)
    }


def _print(shown: Sequence[Table], note: str | None, entries: Sequence[Curves]) -> None:
    """Print a note, the tables, and each row's curve. In a pipe each row has one line."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else ONE_LINE)
    if not console.options.ascii_only:
        shown = [*shown, *sparklines([name for name, _ in shown[0].rows], entries)]
    unlimited = console.options.update(max_width=ONE_LINE)
    if note:
        console.print(_text(note), "", sep="\n")
    for table in shown:
        drawn = _drawn(table, " ")
        if console.measure(drawn, options=unlimited).maximum > console.width:
            drawn = _drawn(table, "\n")
        console.print(_text(table.title, "bold"), drawn, "", sep="\n")


def _drawn(table: Table, gap: str) -> "rich.table.Table":
    """Return a table as rich draws it, with `gap` before what is in brackets."""
    from rich.table import Table as Drawn

    drawn = Drawn(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    drawn.add_column("run" if table.of_runs else "setting", overflow="fold")
    for name in table.columns:
        drawn.add_column(_text(name), overflow="fold")
    for name, cells in table.rows:
        drawn.add_row(_text(name), *(_text(re.sub(r" (?=[\[(])", gap, cell)) for cell in cells))
    return drawn


def _text(words: str, style: str = "") -> "rich.text.Text":
    """Return text of which nothing is markup, and that does not act on the terminal."""
    from rich.text import Text

    return Text(printable(words[:LONGEST]), style)
