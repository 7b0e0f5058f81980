"""`mjfleet runs`: the runs under a log root and their status. Imports nothing heavy."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from mjfleet.config.flags import parse_flags
from mjfleet.config.validation import Checked, Folder
from mjfleet.errors import UserError
from mjfleet.runs.find_run import groups_in, runs_in
from mjfleet.runs.run_summary import Summary, summarise, summarise_group
from mjfleet.tools.prune_runs import Conditions, prune
from mjfleet.tools.terminal_table import print_table
from mjfleet.utils.console import print_error, printable

NEEDED = 6  # Columns for any terminal.


@dataclass(frozen=True, kw_only=True)
class RunsArguments(Checked):
    """List runs and groups of runs, the newest first."""

    words: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="WORD ...")] = ()
    """Only runs that have all these words in their name, task or status."""
    sort: Literal["started", "name", "iterations", "return", "best", "time"] = "started"
    """Order: the newest or the greatest first, or by name."""
    log_root: Folder = "logs"
    """Folder that holds the run directories."""
    json: bool = False
    """Print a JSON list of objects instead of a table."""
    prune: Conditions = ()
    """List what could be removed of your runs with these words: `all` runs, runs that ended
    `unfinished`, runs not trained for a time (`older-than=30d`, or h, w), or their `checkpoints`
    except best.pt, the newest and final_model.pt. All conditions given must hold."""
    yes: bool = False
    """Remove what --prune lists."""


def runs(arguments: Sequence[str]) -> int:
    """List or remove runs; return the exit code."""
    parsed = parse_flags(RunsArguments, arguments, "mjfleet runs")
    root = Path(parsed.log_root)
    if not root.is_dir():
        raise UserError(f"--log-root {root}: there is no such folder.")
    if ("--prune" in arguments or parsed.yes) and not parsed.prune:
        raise UserError("--prune: say what to remove, such as `--prune unfinished --yes`.")
    summaries = [summary for summary in _newest_first(root) if _matches(summary, parsed.words)]
    if parsed.prune:
        return prune(root, parsed.prune, summaries, parsed.yes)
    if parsed.sort == "name":
        summaries.sort(key=lambda summary: summary.run)
    elif parsed.sort != "started":
        number = SORT_KEYS[parsed.sort]  # Runs without it come last.
        summaries.sort(key=lambda s: (number(s) is not None, number(s) or 0.0), reverse=True)
    if parsed.json:
        print(json.dumps([asdict(summary) for summary in summaries], indent=2))
        return 0
    if summaries:
        print_table(_columns(summaries))
    else:
        print(printable(f"there is no such run in {root}"))
    for summary in summaries:
        if summary.parent:
            print(printable(f"{summary.run} began from {summary.parent}"))
        if summary.problem:
            print_error(summary.problem)
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


def _matches(summary: Summary, parts: Sequence[str]) -> bool:
    text = f"{summary.run} {summary.task} {summary.status}".lower()
    return all(part.lower() in text for part in parts)


def _columns(summaries: Sequence[Summary]) -> dict[str, list[str]]:
    """Return as many columns of the table as the terminal has room for."""
    found, room = dict[str, list[str]](), shutil.get_terminal_size().columns
    for name, cell in CELLS.items():
        cells = [_text(cell(summary)) for summary in summaries]
        room -= max(len(name), *map(len, cells)) + 1
        if len(found) >= NEEDED and room < 0:
            break
        found[name] = cells
    return found


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, datetime):
        return f"{value.astimezone():%m-%d %H:%M}"  # The year is in the run's name.
    return "" if value is None else str(value)


def _done(summary: Summary) -> str:
    """Return the iterations of a run, or the runs of a group that have finished."""
    if summary.members is not None:
        return f"{summary.finished_members}/{summary.members} runs"
    return f"{summary.iterations}/{summary.max_iterations or '?'}"


def _best(summary: Summary) -> float | None:
    """Return the best evaluation's return; without evaluations the best mean return."""
    evaluated, mean = summary.best_eval_return, summary.best_mean_return
    return mean if evaluated is None else evaluated


def _devices(summary: Summary) -> str:
    devices, workers = summary.devices or [""], summary.workers
    return devices[0] if workers in (None, 1) else f"{workers} {devices[0][:4]}"


CELLS: dict[str, Callable[[Summary], Any]] = {
    "run": lambda s: s.run,
    "status": lambda s: s.status,
    "seed": lambda s: s.seed,
    "done": _done,
    "return": lambda s: s.last_mean_return,
    "best": _best,
    "took": lambda s: s.seconds and timedelta(seconds=round(s.seconds)),
    "on": _devices,
    "started": lambda s: s.started and datetime.fromisoformat(s.started),
    "task": lambda s: s.task,
    "size": lambda s: f"{s.bytes / 1e6:.1f} MB",
}
"""The columns of the table, the most important first."""
SORT_KEYS: dict[str, Callable[[Summary], float | None]] = {
    "iterations": lambda s: s.iterations,
    "return": lambda s: s.last_mean_return,
    "best": _best,
    "time": lambda s: s.seconds,
}
"""By what runs can be sorted, the greatest first."""
