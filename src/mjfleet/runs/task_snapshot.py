"""Keeps a task's folder as it was when a run was trained, and shows how another one differs.

A snapshot is `task/<beginning of its hash>/` in the run directory. Imports nothing heavy.
"""

import difflib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mjfleet.errors import UserError
from mjfleet.runs.checkpoint_archive import about
from mjfleet.runs.config_yaml import config_of_attempt
from mjfleet.runs.own_runs import note_of
from mjfleet.runs.run_lookup import record_of
from mjfleet.utils.console import print_line, printable
from mjfleet.utils.safe_read import open_regular

FOLDER = "task"
MAX_BYTES = 64 << 20  # Of a snapshot; the largest files are left out.
SHOWN_LINES, SHOWN_COLUMNS = 40, 120  # Of a difference.


@dataclass(frozen=True)
class TaskCode:
    """The content of a task's folder, without compiled Python and hidden files."""

    files: Mapping[str, bytes]  # By their paths in the folder.
    left_out: Sequence[str]  # Paths of links, of special files, and of what is too large.

    @cached_property
    def hash(self) -> str:
        """SHA-256 of all of it, as hexadecimal digits."""
        digests = {path: hashlib.sha256(data).hexdigest() for path, data in self.files.items()}
        text = json.dumps([digests, dict.fromkeys(self.left_out)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Snapshot:
    """The copy of a task's folder in a run directory."""

    folder: Path
    config: Path  # The configuration with which the run was last trained by this code.
    is_own: bool  # Whether this installation has trained the run with it.


def read_code(folder: Path) -> TaskCode:
    """Read a task's folder, or a snapshot of it: the smallest files first, code before meshes."""
    files: dict[str, bytes] = {}
    left_out, room = list[str](), MAX_BYTES
    for _, path in sorted((path.lstat().st_size, path) for path in _parts(folder)):
        name = str(path.relative_to(folder))
        try:
            with open_regular(path, room) as file:
                files[name] = file.read()
        except OSError:
            left_out.append(name)
        else:
            room -= len(files[name])
    return TaskCode(dict(sorted(files.items())), sorted(left_out))


def keep(code: TaskCode, run_dir: Path, place: Path) -> dict[str, Any]:
    """Write a snapshot into a run directory, unless it is there; return run.json's record of it.

    It is written in `place`, from which it may be moved.
    """
    if not _folder(run_dir, code.hash).exists():
        folder = _folder(place, code.hash)
        aside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        aside.mkdir(parents=True)
        for path, data in code.files.items():
            (aside / path).parent.mkdir(parents=True, exist_ok=True)
            (aside / path).write_bytes(data)
        aside.rename(folder)
    return {"hash": code.hash, "left_out": list(code.left_out)}


def changes_since(source: Path, now: TaskCode) -> str | None:
    """Return how code differs from that of a checkpoint, or of a run's newest attempt, as lines.

    None if it is the same, or if that code is not recorded.
    """
    then = _hash_in(source)
    if then in ("", now.hash):
        return None
    kept = _folder(run_dir_of(source), then)
    if not kept.is_dir():
        return f"the task's code is not that of {source.name}, of which the run keeps none"
    return f"the task's code has changed since {source.name}: {difference(kept, now)}"


def snapshot_of(source: Path) -> Snapshot:
    """Return the snapshot with which a checkpoint, or a run's newest attempt, was trained.

    Raises:
        UserError: the run keeps none, it is not complete, or it has been changed.
    """
    run_dir, wanted = run_dir_of(source), _hash_in(source)
    attempts = record_of(run_dir).get("attempts") or [{}]
    codes = [attempt.get("code") or {} for attempt in attempts]
    number = max((n for n, code in enumerate(codes, 1) if code.get("hash") == wanted), default=0)
    folder = _folder(run_dir, wanted)
    if not (number and folder.is_dir()) or folder.is_symlink():
        raise UserError(f"{source}: the run keeps no copy of the task's code.")
    if left_out := codes[number - 1].get("left_out"):
        lacking = ", ".join(left_out)
        raise UserError(f"{folder} is not a whole copy of the task's code, it lacks {lacking}.")
    for compiled in [*folder.rglob("__pycache__")]:  # The hash is without it.
        shutil.rmtree(compiled, ignore_errors=True)
    if read_code(folder).hash != wanted:
        raise UserError(f"{folder} is not as it was when {source} was trained.")
    note = note_of(run_dir)
    config = config_of_attempt(run_dir, number, len(attempts))
    return Snapshot(folder, config, is_own=bool(note and wanted in note.codes))


def own_snapshot(source: Path, task: str, is_asked: bool = False) -> Snapshot:
    """Return the snapshot of a checkpoint or a run, for use instead of the task's own folder.

    `is_asked` is whether the user has given --as-trained, which is the consent to run the code.

    Raises:
        UserError: see `snapshot_of`; or nobody asked, and this installation did not begin the run.
    """
    snapshot = snapshot_of(source)
    if not is_asked and not snapshot.is_own:
        raise UserError(
            f"there is no task {task}, and this installation did not begin the run that keeps its "
            f"code, {snapshot.folder}: look at it, then --as-trained runs it."
        )
    why = "" if is_asked else f"there is no task {task}: "
    print_line(f"{why}the code is {snapshot.folder}, as it was when {source} was trained")
    return snapshot


def is_snapshot(folder: Path) -> bool:
    """Return whether a task's folder is a snapshot."""
    return folder.parent.name == FOLDER and re.fullmatch("[0-9a-f]{16}", folder.name) is not None


def code_of_restart(run_dir: Path, task_folder: Path) -> Path:
    """Return the folder of the code with which the newest attempt of a run was trained.

    It is the task's own folder, or the snapshot if that has changed meanwhile.

    Raises:
        UserError: it has changed, and there is no whole snapshot.
    """
    if read_code(task_folder).hash == _hash_in(run_dir):
        return task_folder
    return snapshot_of(run_dir).folder


def difference(then: Path, now: TaskCode) -> str:
    """Return in which files a snapshot differs from code, and a unified diff, in a few lines."""
    old = read_code(then)
    both = sorted({*old.files, *now.files})
    changed = [path for path in both if old.files.get(path) != now.files.get(path)]
    lines = [", ".join(changed) or "files of which there is no copy"]
    for path in changed:
        texts = [(code.files.get(path) or b"").decode(errors="replace") for code in (old, now)]
        if any("\0" in text for text in texts):
            continue  # It is no text.
        was, now_is = (text.splitlines() for text in texts)
        lines += difflib.unified_diff(was, now_is, f"trained/{path}", f"now/{path}", "", "", 1, "")
    if len(lines) > SHOWN_LINES:
        lines[SHOWN_LINES:] = [f"... and {len(lines) - SHOWN_LINES} more lines"]
    return "\n".join(map(_line, lines))


def _parts(folder: Path) -> Iterator[Path]:
    """Yield what a task consists of: no folders, hidden files and compiled Python."""
    for path in folder.rglob("*"):
        names = path.relative_to(folder).parts
        hidden = any(name[0] == "." or name == "__pycache__" for name in names)
        if not hidden and (path.is_symlink() or not path.is_dir()):
            yield path


def run_dir_of(source: Path) -> Path:
    """Return the run directory of a checkpoint, or the run directory itself."""
    return source if source.is_dir() else source.absolute().parent.parent


def _hash_in(source: Path) -> str:
    """Return the hash of the code of a checkpoint or a run's newest attempt; "": it is unknown."""
    if source.is_dir():
        *_, last = record_of(source).get("attempts") or [{}]
        found = (last.get("code") or {}).get("hash")
    else:
        found = about(source).get("task_hash")
    return found if isinstance(found, str) and re.fullmatch("[0-9a-f]{64}", found) else ""


def _folder(run_dir: Path, task_hash: str) -> Path:
    return run_dir / FOLDER / task_hash[:16]


def _line(text: str) -> str:
    text = printable(text).replace("\n", "\\n").expandtabs(4)
    return text if len(text) <= SHOWN_COLUMNS else f"{text[: SHOWN_COLUMNS - 3]}..."
