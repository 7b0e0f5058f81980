"""`mjfleet runs --prune`: removes what runs have written, or checkpoints. Imports nothing heavy.

Files that no run writes stay. run.json goes last: if this process is killed, the run is still
listed, and the same command removes the rest.
"""

import re
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

from mjfleet.config.validation import Rule
from mjfleet.errors import UserError
from mjfleet.runs.checkpoints import BEST, FINAL
from mjfleet.runs.find_run import group_of, groups_in, is_of_this_user, members_of, name_of
from mjfleet.runs.metrics_csv import METRICS_FILE
from mjfleet.runs.named_run import choose
from mjfleet.runs.own_runs import remove_note
from mjfleet.runs.run_directory import WRITTEN
from mjfleet.runs.run_json import GROUP_FILE, RECORD_FILE
from mjfleet.runs.run_lock import LOCK_FILE, is_locked, lock_again
from mjfleet.runs.run_summary import Summary, bytes_in
from mjfleet.utils.console import print_error, print_line

CONDITIONS = ("all", "unfinished", "checkpoints")
AGE = re.compile(r"older-than=([0-9]{1,6})([hdw])", re.ASCII)
UNIT_SECONDS = {"h": 3600, "d": 86400, "w": 7 * 86400}
GROUP_FILES = ("seed_*.log", "trial_*.log", "best.yaml", "study.db", *WRITTEN)
"""What a group writes into its folder, beside its runs."""
Conditions = Annotated[
    tuple[str, ...],
    Rule(
        lambda v: all(word in CONDITIONS or AGE.fullmatch(word) for word in v),
        f"some of {', '.join(CONDITIONS)}, and older-than=30d (or h, w); names of runs come first",
    ),
]


def prune(root: Path, conditions: Sequence[str], chosen: Sequence[Summary], yes: bool) -> int:
    """List what the conditions name of the chosen runs; `yes`: remove it; return the exit code."""
    from rich.filesize import decimal

    found = {root / run.run: run for run in chosen if _is_meant(root / run.run, run, conditions)}
    removals: dict[Path, list[Path]] = {}
    for path, summary in found.items():
        try:
            if summary.members is None and (files := _files(root, path, summary, conditions)):
                removals[path] = files
        except (OSError, UserError) as error:
            print_error(f"{summary.run} stays: {error}")
    for group in groups_in(root) if "checkpoints" not in conditions else ():
        runs = members_of(group)  # It goes with the last of them.
        if removals.keys() >= set(runs) and (runs or group in found) and not is_locked(group):
            removals[group] = _found(group, GROUP_FILES)
    for path, files in removals.items():
        what = f"{len(files)} checkpoints" if "checkpoints" in conditions else "all of it"
        print_line(f"{name_of(path)}: {what}, {decimal(bytes_in(*files))}")
    if not removals:
        print_line("nothing is to be removed")
    elif not yes:
        total = bytes_in(*(file for files in removals.values() for file in files))
        print_line(f"this is {decimal(total)} in all; --yes removes it")
    kept = [path for path, files in removals.items() if yes and not _remove(path, files)]
    return 1 if kept else 0


def _is_meant(path: Path, summary: Summary, conditions: Sequence[str]) -> bool:
    """Return whether all conditions name a run or a group of this user."""
    if "unfinished" in conditions:
        done, total = summary.iterations, summary.max_iterations
        if summary.members is not None:
            done, total = summary.finished_members or 0, summary.members
        if summary.status in ("running", "finished") or total is None or done >= total:
            return False
    files = [path / name for name in (RECORD_FILE, METRICS_FILE, GROUP_FILE)]
    trained = max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)
    ages = [int(age[1]) * UNIT_SECONDS[age[2]] for age in map(AGE.fullmatch, conditions) if age]
    return is_of_this_user(path) and time.time() - trained >= max(ages, default=0)


def _files(root: Path, path: Path, summary: Summary, conditions: Sequence[str]) -> list[Path]:
    """Return what is to be removed of a run; UserError if it is to stay."""
    if summary.task is None:
        raise UserError(f"{path / RECORD_FILE} cannot be read, so it may be no run.")
    if path.resolve() != root.resolve() / summary.run:
        raise UserError(f"{path} is reached by a link.")
    if any(map(is_locked, filter(None, (path, group_of(path))))):
        raise UserError("it is being trained.")
    if "checkpoints" not in conditions:
        return _found(path, WRITTEN)
    folder = path / "checkpoints"
    if folder.is_symlink():
        raise UserError(f"{folder} is a link.")
    newest, _ = choose(path)
    kept = {newest, folder / BEST, folder / FINAL}
    return [file for file in _found(folder, ("**/*.pt",)) if newest and file not in kept]


def _found(folder: Path, names: Sequence[str]) -> list[Path]:
    """Return what a folder holds of these names or patterns, without links: no run makes one."""
    found = [path for name in names for path in sorted(folder.glob(name))]
    return [path for path in found if not path.is_symlink()]


def _remove(path: Path, files: Sequence[Path]) -> bool:
    """Remove files of a run or a group, and its folder if that is then empty.

    Returns whether that could be done; a reason why not is printed.
    """
    try:
        with ExitStack() as locks:
            for folder in filter(None, (group_of(path), path)):
                if lock := lock_again(folder):
                    locks.callback(lock.close)
            if is_whole := files[-1].name in (RECORD_FILE, GROUP_FILE):
                remove_note(path)
            for file in files:
                shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
            if is_whole:
                (path / LOCK_FILE).unlink(missing_ok=True)
                if left := sorted(file.name for file in path.iterdir()):
                    print_line(f"{name_of(path)} keeps {', '.join(left)}")
                else:
                    path.rmdir()
    except (OSError, UserError) as error:
        print_error(f"{name_of(path)} stays: {error}")
        return False
    return True
