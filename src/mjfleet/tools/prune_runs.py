"""`mjfleet runs --prune`: removes runs, or checkpoints of runs. Imports nothing heavy.

A run is locked and renamed before its files are removed. If this process is killed meanwhile, a
whole run is left, or a folder that no command takes for a run and that the next `--prune` removes.
"""

import os
import re
import shutil
import stat
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mjfleet.config.validation import Rule
from mjfleet.errors import UserError
from mjfleet.runs.checkpoint_names import BEST, FINAL
from mjfleet.runs.metrics_csv import METRICS_FILE
from mjfleet.runs.resume_choice import choose
from mjfleet.runs.run_directory import is_locked, lock_run
from mjfleet.runs.run_json import RECORD_FILE
from mjfleet.runs.run_lookup import PRUNED
from mjfleet.runs.run_summary import Summary
from mjfleet.utils.console import print_error, print_line
from mjfleet.utils.safe_read import path_in, walk

WORDS = ("all", "unfinished", "checkpoints")
AGE = re.compile(r"older-than=([0-9]{1,6})([hdw])", re.ASCII)
SECONDS = {"h": 3600, "d": 86400, "w": 7 * 86400}
Conditions = Annotated[
    tuple[str, ...],
    Rule(
        lambda v: all(word in WORDS or AGE.fullmatch(word) for word in v),
        f"some of {', '.join(WORDS)}, and older-than=30d (or h, w); names of runs come before it",
    ),
]


@dataclass(frozen=True)
class Removal:
    """What is to be removed of a run."""

    run: str
    path: Path  # Its directory.
    files: tuple[Path, ...]  # Its checkpoints; none: all of it.
    text: str  # What that is, for the user.
    bytes: int  # How much space it frees.


def prune(
    root: Path,
    conditions: Sequence[str],
    chosen: Sequence[Summary],
    known: Sequence[Summary],
    yes: bool,
) -> int:
    """Show what the conditions name of the chosen runs, ask, and remove it; return the exit code.

    It says which of all known runs began from one that goes.

    Raises:
        UserError: there is nobody to ask, and `yes` was not given. Nothing is removed.
    """
    from rich.filesize import decimal

    asides = (path for path in root.glob(f"*/{PRUNED}*") if path.is_dir() and not path.is_symlink())
    removals = [_leftover(path) for path in asides if not is_locked(path)]
    for summary in chosen:
        if (removal := _removal(root / summary.run, summary, conditions)) is not None:
            removals.append(removal)
    removed = {removal.run for removal in removals if not removal.files}
    for removal in removals:
        print_line(f"{removal.run}: {removal.text}, {decimal(removal.bytes)}")
    for summary in known:
        for other in (summary.parent, summary.init_from):
            name = (other or "").partition(" at iteration ")[0]
            if name in removed and summary.run not in removed:
                print_line(f"{summary.run} began from {name}; it has a copy of that checkpoint")
    if not removals:
        print_line("nothing is to be removed")
        return 0
    total = decimal(sum(removal.bytes for removal in removals))
    if not yes:
        if not sys.stdin.isatty():
            raise UserError(f"{total} would be removed. No terminal can be asked: add --yes.")
        try:
            answer = input(f"Remove this, {total} in all? [y/N] ")
        except EOFError:
            answer = ""
        if answer.strip().lower() not in ("y", "yes"):
            print_line("nothing was removed")
            return 0
    gone = [removal for removal in removals if _remove(removal)]
    print_line(f"removed {decimal(sum(removal.bytes for removal in gone))}")
    return 0 if len(gone) == len(removals) else 1


def _removal(path: Path, summary: Summary, conditions: Sequence[str]) -> Removal | None:
    """Return what is to be removed of a run; None: it is not meant, or stays, which is said."""
    if not _is_meant(path, summary, conditions):
        return None
    try:
        if why := _why_kept(path, summary):
            raise UserError(why)
        if "checkpoints" not in conditions:
            text = f"{summary.status}, {summary.iterations} iterations"
            return Removal(summary.run, path, (), text, _space(_files(path)))
        if not (files := _older_checkpoints(path)):
            return None
        text = f"{len(files)} checkpoint{'s' * (len(files) > 1)}"
        return Removal(summary.run, path, files, text, _space(files))
    except UserError as error:
        print_error(f"{summary.run} stays: {error}")
    return None


def _is_meant(path: Path, summary: Summary, conditions: Sequence[str]) -> bool:
    if "unfinished" in conditions:
        done, total = summary.iterations, summary.max_iterations
        if summary.status in ("running", "finished") or total is None or done >= total:
            return False
    for number, unit in (age.groups() for age in map(AGE.fullmatch, conditions) if age):
        times = [0.0]
        for name in (RECORD_FILE, METRICS_FILE):
            with suppress(OSError):
                times.append((path / name).lstat().st_mtime)
        if max(times) > time.time() - int(number) * SECONDS[unit]:
            return False
    return True


def _why_kept(path: Path, summary: Summary) -> str | None:
    """Return why a run must not be touched."""
    if summary.task is None:
        return f"{path / RECORD_FILE} cannot be read, so it may be no run."
    if path.is_symlink() or path.parent.is_symlink():
        return f"{path} is reached by a link."
    return "it is being trained, or its file system has no locks." if is_locked(path) else None


def _older_checkpoints(path: Path) -> tuple[Path, ...]:
    """Return the checkpoints of a run besides the newest good one, the best and the last.

    Raises:
        UserError: none of them is good.
    """
    newest, _ = choose(path)
    folder = path_in(path, "checkpoints")
    kept = {folder / BEST, folder / FINAL, newest}
    found = [file for file in _files(folder) if file.suffix == ".pt"]
    return tuple(sorted(file for file in found if file not in kept)) if newest else ()


def _leftover(path: Path) -> Removal:
    run = str(path.with_name(path.name.removeprefix(PRUNED)))
    return Removal(run, path, (), "what is left of it", _space(_files(path)))


def _files(folder: Path) -> list[Path]:
    """Return the regular files in a folder and its folders, without following links."""
    paths = (here / name for here, _, names in walk(folder) for name in names)
    return [path for path in paths if stat.S_ISREG(path.lstat().st_mode)]


def _space(files: Iterable[Path]) -> int:
    """Return the bytes that removing files frees: not those of files with other names as well."""
    about = {path: path.lstat() for path in files}
    names = Counter((entry.st_dev, entry.st_ino) for entry in about.values())
    sizes = {(entry.st_dev, entry.st_ino): entry for entry in about.values()}
    return sum(
        sizes[file].st_size for file, count in names.items() if count == sizes[file].st_nlink
    )


def _remove(removal: Removal) -> bool:
    """Remove that, unless a process has locked the run meanwhile; return whether it is gone."""
    try:
        lock = lock_run(removal.path)
    except (OSError, UserError) as error:
        print_error(f"{removal.run} stays: {error}")
        return False
    try:
        for file in removal.files:
            file.unlink(missing_ok=True)
        if not removal.files:
            aside, name = removal.path, removal.path.name
            if not name.startswith(PRUNED):
                aside = removal.path.rename(removal.path.with_name(PRUNED + name))
            shutil.rmtree(aside)
    except OSError as error:
        print_error(f"{removal.run} could not be removed: {error}")
        return False
    finally:
        if lock is not None:
            os.close(lock)
    return True
