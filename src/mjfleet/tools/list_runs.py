"""`mjfleet runs`: the runs under a log root and their status. Imports nothing heavy."""

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from mjfleet.cli.flags import parse_flags
from mjfleet.config.validation import Checked, Folder
from mjfleet.errors import UserError
from mjfleet.runs.run_lookup import groups_in, runs_in
from mjfleet.runs.run_summary import Summary, summarise, summarise_group
from mjfleet.tools.prune_runs import Conditions, prune
from mjfleet.utils.console import printable

LONGEST = 200  # Characters of a cell.

NEEDED = ("run", "status", "seed", "done", "return", "best")  # Columns for any terminal.


@dataclass(frozen=True, kw_only=True)
class RunsArguments(Checked):
    """List runs and groups of runs, the newest first."""

    words: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="WORD ...")] = ()
    """Only runs that have all these words in their name, task or status."""
    sort: Literal["started", "name", "iterations", "return", "best", "time"] = "started"
    """What to sort by: the newest, the greatest, or by name."""
    log_root: Folder = "logs"
    """Folder that holds the run directories."""
    json: bool = False
    """Print a JSON list of objects instead of a table."""
    prune: Conditions = ()
    """Remove, of the runs with these words, `all`, those that ended `unfinished`, those not trained
    for a time (`older-than=30d`, or h, w), or their `checkpoints` except best.pt, the newest and
    final_model.pt; several apply together. It shows what that is, and asks."""
    yes: bool = False
    """Remove without asking."""


def runs(arguments: Sequence[str]) -> int:
    parsed = parse_flags(RunsArguments, arguments, "mjfleet runs")
    root = Path(parsed.log_root)
    if not root.is_dir():
        raise UserError(f"--log-root {root}: there is no such folder.")
    if "--prune" in arguments and not parsed.prune:
        raise UserError("--prune: say what to remove, such as `--prune unfinished`.")
    if parsed.yes and not parsed.prune:
        raise UserError("--yes is for --prune.")
    found = _newest_first(root)
    summaries = [summary for summary in found if _has(summary, parsed.words)]
    if parsed.prune:
        return prune(root, parsed.prune, summaries, parsed.yes)
    if (key := KEYS.get(parsed.sort)) is not None:
        known = [summary for summary in summaries if key(summary) is not None]
        unknown = [summary for summary in summaries if key(summary) is None]
        summaries = sorted(known, key=key, reverse=parsed.sort != "name") + unknown
    if parsed.json:
        print(json.dumps([asdict(summary) for summary in summaries], indent=2))
    elif summaries:
        _print_table(summaries)
        for summary in summaries:
            if summary.parent:
                print(printable(f"{summary.run} began from {summary.parent}"))
            if summary.problem:
                print(printable(f"{summary.run}: {summary.problem}"), file=sys.stderr)
    else:
        which = f" with the words {' '.join(parsed.words)}" if parsed.words and found else ""
        print(f"there is no run{which} in {root}")
    return 0


def _newest_first(root: Path) -> list[Summary]:
    """Return all runs and groups; a group is followed by its members."""
    groups = {group: list[Summary]() for group in groups_in(root)}
    found: list[tuple[float, Summary, list[Summary]]] = []
    for run in runs_in(root):
        started, summary = summarise(run)
        if run.parent in groups:
            groups[run.parent].append(summary)
        else:
            found.append((started, summary, []))
    found += [(*summarise_group(group, members), members) for group, members in groups.items()]
    found.sort(key=lambda one: (one[0], one[1].run), reverse=True)
    return [summary for _, first, members in found for summary in (first, *members)]


def _has(summary: Summary, words: Sequence[str]) -> bool:
    text = f"{summary.run} {summary.task} {summary.status}".lower()
    return all(word.lower() in text for word in words)


def _print_table(summaries: Sequence[Summary]) -> None:
    """Print a line for each run, with as many columns as the terminal has room for."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # In a pipe each run has one line.
    console = Console(width=None if sys.stdout.isatty() else 400)
    columns = _columns(summaries)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    room = shutil.get_terminal_size().columns
    for name, cells in columns.items():
        room -= max(len(name), *map(len, cells)) + 1
        if name not in NEEDED and room < 0:
            break
        is_text = name in ("run", "status", "task")
        justify = "left" if is_text else "right"
        table.add_column(name, justify=justify, no_wrap=name != "run", overflow="fold")
    # A file may have any text: nothing of it is markup.
    for row in zip(*list(columns.values())[: len(table.columns)], strict=True):
        table.add_row(*map(Text, row))
    console.print(table)


def _columns(summaries: Sequence[Summary]) -> dict[str, list[str]]:
    """Return the cells of all columns, the most important first."""
    from rich.filesize import decimal

    of: dict[str, Callable[[Summary], Any]] = {
        "run": lambda s: s.run,
        "status": lambda s: s.status,
        "seed": lambda s: s.seed,
        "done": _done,
        "return": lambda s: s.last_mean_return,
        "best": _best,
        "took": lambda s: s.seconds and timedelta(seconds=round(s.seconds)),
        "on": _devices,
        "started": _started,
        "task": lambda s: s.task,
        "size": lambda s: decimal(s.bytes),
    }
    return {name: [_text(cell(s)) for s in summaries] for name, cell in of.items()}


def _done(summary: Summary) -> str:
    """Return the iterations of a run, or the runs of a group that have finished."""
    if summary.members is not None:
        return f"{summary.finished_members}/{summary.members} runs"
    return f"{summary.iterations}/{summary.max_iterations or '?'}"


def _best(summary: Summary) -> float | None:
    """Return the best evaluation's return; without evaluations the best mean return."""
    evaluated, mean = summary.best_eval_return, summary.best_mean_return
    return mean if evaluated is None else evaluated


def _text(value: Any) -> str:
    """Return a value as a cell, whose text does not act on the terminal."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else printable(str(value)[:LONGEST]).replace("\n", " ")


def _devices(summary: Summary) -> str:
    devices, workers = summary.devices or [""], summary.workers
    return devices[0] if workers in (None, 1) else f"{workers} {devices[0][:4]}"


def _started(summary: Summary) -> str:
    """Return the time of the start, without the year, which is in the run's name."""
    if not summary.started:
        return ""
    return f"{datetime.fromisoformat(summary.started).astimezone():%m-%d %H:%M}"


KEYS: dict[str, Callable[[Summary], Any]] = {
    "name": lambda s: s.run,
    "iterations": lambda s: s.iterations,
    "return": lambda s: s.last_mean_return,
    "best": _best,
    "time": lambda s: s.seconds,
}
"""By what can be sorted, besides the start."""
