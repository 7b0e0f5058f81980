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
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mjfleet.config.validation import Rule
from mjfleet.errors import UserError
from mjfleet.runs.checkpoint_names import BEST, FINAL
from mjfleet.runs.metrics_csv import METRICS_FILE
from mjfleet.runs.resume_choice import choose
from mjfleet.runs.run_directory import is_locked, lock_run
from mjfleet.runs.run_json import GROUP_FILE, RECORD_FILE
from mjfleet.runs.run_lookup import group_of, groups_in, is_group, members_of, name_of
from mjfleet.runs.run_summary import Summary
from mjfleet.utils.console import print_error, print_line

PRUNED = ".pruned_"  # What the name of a folder begins with whose files are being removed.
WORDS = ("all", "unfinished", "checkpoints")
AGE = re.compile(r"older-than=([0-9]{1,6})([hdw])", re.ASCII)
FILES = (RECORD_FILE, METRICS_FILE, GROUP_FILE)  # Those that training writes often.
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
    """What is to be removed of a run or a group."""

    path: Path  # Its directory.
    text: str  # What that is, for the user.
    bytes: int  # How much space it frees.
    trained: float  # When it was trained last.
    files: tuple[Path, ...] = ()  # Its checkpoints; none: all of it.

    @property
    def name(self) -> str:
        """What messages call it."""
        return name_of(self.path).replace(PRUNED, "")


def prune(root: Path, conditions: Sequence[str], chosen: Sequence[Summary], yes: bool) -> int:
    """Show what the conditions name of the chosen runs, ask, and remove it; return the exit code.

    Raises:
        UserError: there is nobody to ask, and `yes` was not given. Nothing is removed.
    """
    from rich.filesize import decimal

    removals = [*_leftovers(root), *_removals(root, conditions, chosen)]
    for removal in removals:
        print_line(f"{removal.name}: {removal.text}, {decimal(removal.bytes)}")
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


def _removals(root: Path, conditions: Sequence[str], chosen: Sequence[Summary]) -> list[Removal]:
    """Return what is to be removed. A group is, if no run of it is left, or if it never had one."""
    meant = {root / run.run: run for run in chosen if _is_meant(root / run.run, run, conditions)}
    found: dict[Path, Removal] = {}
    for path, summary in meant.items():
        try:
            if not is_group(path) and (removal := _removal(path, summary, conditions)):
                found[path] = removal
        except (OSError, UserError) as error:
            print_error(f"{summary.run} stays: {error}")
    for group in groups_in(root) if "checkpoints" not in conditions else ():
        runs = members_of(group)
        if found.keys() >= set(runs) and (runs or group in meant) and not _why_kept(group):
            found = {path: removal for path, removal in found.items() if path not in runs}
            found[group] = _whole(group, f"a group of {len(runs)} run{'s' * (len(runs) != 1)}")
    return list(found.values())


def _removal(path: Path, summary: Summary, conditions: Sequence[str]) -> Removal | None:
    """Return what is to be removed of a run, if anything.

    Raises:
        UserError: it must not be touched.
    """
    if summary.task is None:
        raise UserError(f"{path / RECORD_FILE} cannot be read, so it may be no run.")
    if why := _why_kept(path):
        raise UserError(why)
    if "checkpoints" not in conditions:
        return _whole(path, f"{summary.status}, {summary.iterations} iterations")
    newest, _ = choose(path)
    folder = path / "checkpoints"
    if folder.is_symlink():
        raise UserError(f"{folder} is a link.")
    kept = {newest, folder / BEST, folder / FINAL}
    files = {f: about for f, about in _files(folder).items() if f.suffix == ".pt" and f not in kept}
    if not newest or not files:
        return None
    text = f"{len(files)} checkpoint{'s' * (len(files) != 1)}"
    return Removal(path, text, _space(files.values()), _trained(path), tuple(files))


def _whole(path: Path, text: str) -> Removal:
    return Removal(path, text, _space(_files(path).values()), _trained(path))


def _leftovers(root: Path) -> list[Removal]:
    """Return what is left of runs and groups, since a process that removed them was killed."""
    folders = (*root.glob("*"), *groups_in(root))
    found = (path for folder in folders for path in folder.glob(f"{PRUNED}*"))
    return [_whole(path, "what is left of it") for path in found if not _why_kept(path)]


def _is_meant(path: Path, summary: Summary, conditions: Sequence[str]) -> bool:
    if "unfinished" in conditions:
        done, total = summary.iterations, summary.max_iterations
        if summary.members is not None:
            done, total = summary.finished_members or 0, summary.members
        if summary.status in ("running", "finished") or total is None or done >= total:
            return False
    ages = (int(age[1]) * SECONDS[age[2]] for age in map(AGE.fullmatch, conditions) if age)
    return time.time() - _trained(path) >= max(ages, default=0)


def _trained(path: Path) -> float:
    """Return when a run or a run of a group was trained last, in seconds since the epoch."""
    times = [0.0]
    for file in (one / name for one in (path, *members_of(path)) for name in FILES):
        with suppress(OSError):
            times.append(file.lstat().st_mtime)
    return max(times)


def _why_kept(path: Path) -> str | None:
    """Return why a run or group must not be touched."""
    if any(one.is_symlink() for one in (path, *path.parents[: name_of(path).count("/")])):
        return f"{path} is reached by a link."
    is_busy = any(map(is_locked, filter(None, (path, group_of(path)))))
    return "it is being trained, or its file system has no locks." if is_busy else None


def _files(folder: Path) -> dict[Path, os.stat_result]:
    """Return the regular files in a folder and its folders, without following links."""
    found = {}
    for path in (Path(here, name) for here, _, names in os.walk(folder) for name in names):
        with suppress(FileNotFoundError):  # A run has begun meanwhile.
            found[path] = path.lstat()
    return {path: about for path, about in found.items() if stat.S_ISREG(about.st_mode)}


def _space(files: Collection[os.stat_result]) -> int:
    """Return the bytes that removing files frees: not those of files with other names as well."""
    names = Counter(file.st_ino for file in files)
    return sum({f.st_ino: f.st_size for f in files if names[f.st_ino] == f.st_nlink}.values())


def _remove(removal: Removal) -> bool:
    """Remove that, unless it has been trained meanwhile; return whether it is gone."""
    path = removal.path
    try:
        with ExitStack() as locks:
            for one in filter(None, (group_of(path), path, *members_of(path))):
                if (lock := lock_run(one)) is not None:
                    locks.callback(os.close, lock)
            if _trained(path) != removal.trained:
                raise UserError("it was trained meanwhile.")
            for file in removal.files:
                file.unlink(missing_ok=True)
            if not removal.files:
                if not path.name.startswith(PRUNED):
                    path = path.rename(path.with_name(PRUNED + path.name))
                shutil.rmtree(path)
    except (OSError, UserError) as error:
        print_error(f"{removal.name} stays: {error}")
        return False
    return True
