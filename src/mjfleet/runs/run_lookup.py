"""Finds runs under a log root by path, by name, by a part of the name, or by `latest`."""

import difflib
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from mjfleet.errors import UserError
from mjfleet.runs.metrics_csv import METRICS_FILE
from mjfleet.runs.run_json import GROUP_FILE, RECORD_FILE, read_record
from mjfleet.utils.console import in_a_line

LATEST = "latest"
NAMES = "[!.]*"  # Skips hidden folders: runs that are being deleted.
ON_WANDB = "wandb:"  # What a word for a run on W&B begins with.
LISTED = 5  # Number of runs that a message names at most.
NEAR = 0.6  # Similarity of a run's name to the typed word, 0 to 1, from which it is suggested.


def runs_in(root: Path, experiment: str | None = None) -> list[Path]:
    """Return the run directories under a log root, of one experiment or all, damaged ones too.

    The members of groups are among them.
    """
    folders = root.glob(f"*/{NAMES}") if experiment is None else (root / experiment).glob(NAMES)
    runs = ([path] if _is_run(path) else members_of(path) for path in folders)
    return [run for some in runs for run in some]


def groups_in(root: Path) -> list[Path]:
    """Return the folders of groups of runs under a log root."""
    return [path for path in root.glob(f"*/{NAMES}") if is_group(path)]


def is_group(folder: Path) -> bool:
    """Return whether a folder is one of a group of runs."""
    return os.path.lexists(folder / GROUP_FILE)


def members_of(group: Path) -> list[Path]:
    """Return the run directories of a group in the order of their numbers; of no group, none."""
    found = filter(_is_run, group.glob(NAMES)) if is_group(group) else ()
    return sorted(found, key=lambda run: (len(run.name), run.name))


def is_of_this_user(folder: Path) -> bool:
    """Return whether a folder belongs to the user of this process; not if it is gone."""
    try:
        return folder.stat().st_uid == os.geteuid()
    except FileNotFoundError:
        return False


def group_of(run: Path) -> Path | None:
    """Return the folder of the group that a run is a member of, if it is one."""
    return run.parent if is_group(run.parent) else None


def name_of(run: Path) -> str:
    """Return the experiment and name of a run or a group; a member's group is in between."""
    return "/".join(run.parts[-3 if group_of(run) else -2 :])


def _is_run(folder: Path) -> bool:
    return any(os.path.lexists(folder / name) for name in (RECORD_FILE, METRICS_FILE))


def failure_files(run_dir: Path, pattern: str) -> list[Path]:
    """Return the files of all attempts' failures, which no link leads to, by a pattern."""
    folders = [run_dir / "failures", *(run_dir / "failures").glob("attempt_*")]
    return [p for folder in folders if not folder.is_symlink() for p in folder.glob(pattern)]


def record_of(run_dir: Path, file: str = RECORD_FILE) -> dict[str, Any]:
    """Return the entries of a run's run.json, or of a group's `file`.

    UserError, which begins with "its run.json", if they cannot be read or name no task.
    """
    try:
        record = read_record(run_dir, file)
    except OSError as error:
        raise UserError(f"its {file}: {error.strerror}.") from None
    except ValueError as error:
        raise UserError(f"its {file}: {in_a_line(error)}.") from None
    if "task" not in record:
        raise UserError(f"its {file} names no task.")
    return record


def started_at(record: dict[str, Any]) -> float:
    """Return the start of a run in seconds since the epoch, or 0 if its record has none."""
    try:
        return datetime.fromisoformat(str(record.get("started"))).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def find_run(
    wanted: str,
    name: str,
    root: Path,
    experiment: str | None = None,
    task: str | None = None,
    dry_run: bool = False,
    may_be_group: bool = False,
) -> Path:
    """Return the path of the run, or of the checkpoint, that a word means; or of a group of runs.

    Args:
        wanted: a path, `latest` or `<experiment>/latest` (the run that was started last), a run's
            name, its beginning, or a word in it, with the experiment in front or without, or a run
            on W&B, which is downloaded.
        name: how messages name it.
        root: the log root.
        experiment: if given, `latest` is this experiment's, and its runs take precedence.
        task: of which alone `latest` is, or a run is downloaded; None: any.
        dry_run: whether to exit instead of downloading, see `fetch_run`.
        may_be_group: whether a word may mean a group. `latest` is then the group of the member
            that was started last.

    Raises:
        UserError: no run, or several runs, match.
    """
    if wanted.startswith(ON_WANDB):
        from mjfleet.runs.wandb_run import fetch_run  # Other words do not wait for it.

        return fetch_run(wanted, name, root, task, dry_run)
    folder, _, last = wanted.rpartition("/")
    if wanted == LATEST or (last == LATEST and not os.path.exists(wanted)):
        newest = _latest(name, root, Path(folder).name or experiment, task)
        return (may_be_group and group_of(newest)) or newest
    if os.path.exists(wanted):
        if is_group(Path(wanted)) and not may_be_group:
            members = _listed(members_of(Path(wanted))) or "none yet"
            raise UserError(f"{name} is a group of runs; name one of them: {members}.")
        return Path(wanted)
    runs = filter(is_of_this_user, runs_in(root) + (groups_in(root) if may_be_group else []))
    runs = sorted(runs, key=lambda run: (run.name, run), reverse=True)
    word = re.compile(rf"(?<![^\W_]){re.escape(wanted)}(?![^\W_])")
    found = [run for run in runs if wanted in _names(run)]
    found = found or [run for run in runs if any(n.startswith(wanted) for n in _names(run))]
    found = found or [run for run in runs if any(map(word.search, _names(run)[:-1]))]
    found = [run for run in found if run.parent not in found]  # A group stands for its members.
    found = [run for run in found if (group_of(run) or run).parent.name == experiment] or found
    if len(found) == 1:
        return found[0]
    if found:
        more = f", and {len(found) - LISTED} more" if len(found) > LISTED else ""
        raise UserError(f"{name} fits several runs: {_listed(found)}{more}. Give more of the name.")
    beginnings = {n[: len(wanted)]: run for run in reversed(runs) for n in _names(run)}
    alike = difflib.get_close_matches(wanted, beginnings, LISTED, NEAR)
    near = list(dict.fromkeys(beginnings[beginning] for beginning in alike))
    raise UserError(
        f"{name} does not exist, and no run in {root} has a name that begins with it or has it as "
        f"a word. {f'Similar names: {_listed(near)}. ' if near else ''}"
        f"`mjfleet runs --log-root {root}` lists all.{_others(runs_in(root))}"
    )


def _latest(name: str, root: Path, experiment: str | None, task: str | None) -> Path:
    started = {}
    for run in filter(is_of_this_user, runs_in(root, experiment)):
        with suppress(UserError):
            record = record_of(run)
            if task in (None, record["task"]):
                started[run] = started_at(record)
    if not started:
        of_task = f" of the task {task}" if task and not experiment else ""
        folder = root / experiment if experiment else root
        others = _others(runs_in(root, experiment))
        raise UserError(f"{name}: there is no run{of_task} in {folder}.{others}")
    return max(started, key=lambda run: (started[run], run))


def _others(runs: Sequence[Path]) -> str:
    """Return how to name runs of other users, if some of these are theirs."""
    are_own = all(map(is_of_this_user, runs))
    return "" if are_own else " Runs of other users have to be named by their paths."


def _names(run: Path) -> tuple[str, ...]:
    """Return the names of a run: alone, with what it is in, and with the log root."""
    full = name_of(run)
    within = (full.partition("/")[2],) if group_of(run) else ()
    return run.name, *within, full, str(run)


def _listed(runs: Sequence[Path]) -> str:
    return ", ".join(map(name_of, runs[:LISTED]))
