"""Keeps a task's folder as it was when a run was trained, and shows how another one differs.

A snapshot is `task/<beginning of its hash>/` in the run directory: regular files only, and bounded.
Imports nothing heavy.
"""

import difflib
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mjfleet.config.validation import FOLDER_NAME
from mjfleet.errors import UserError
from mjfleet.runs.checkpoint_archive import about
from mjfleet.runs.config_yaml import config_of_attempt
from mjfleet.runs.foreign_files import CODE, is_own, remember
from mjfleet.runs.run_lookup import record_of
from mjfleet.utils.console import printable
from mjfleet.utils.safe_read import read_bytes

FOLDER = "task"
MAX_BYTES, MAX_FILES, MAX_DEPTH = 64 << 20, 2000, 20
"""Of a folder; larger files, and more, are left out."""
MAX_TEXT_BYTES = 200_000  # A larger file is not compared line by line.
FOUND_NOWHERE = "there is no task {}: its code is what the run keeps, as with --as-trained"
SHOWN_LINES, SHOWN_COLUMNS = 40, 120  # Of a difference.


@dataclass(frozen=True)
class TaskCode:
    """The content of a task's folder, without compiled Python and hidden files."""

    files: Mapping[str, bytes]  # By their paths in the folder.
    left_out: Mapping[str, str]  # Why, by path: links, special files, what is too large.

    @cached_property
    def hash(self) -> str:
        """SHA-256 of all of it, as hexadecimal digits."""
        digests = {path: hashlib.sha256(data).hexdigest() for path, data in self.files.items()}
        text = json.dumps([digests, dict(self.left_out)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def write(self, folder: Path) -> None:
        """Write its files into a new folder, which is there once it is whole."""
        aside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        try:
            for path, data in self.files.items():
                (aside / path).parent.mkdir(parents=True, exist_ok=True)
                (aside / path).write_bytes(data)
            aside.mkdir(parents=True, exist_ok=True)
            aside.rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


@dataclass(frozen=True)
class _Kept:
    """A snapshot in a run directory."""

    folder: Path
    code: TaskCode
    config: Path  # The configuration with which the run trained by this code last.


def read_code(folder: Path) -> TaskCode:
    """Read a task's folder, or a snapshot of it, which may be somebody else's.

    Links are not followed, and nothing but regular files is opened. The smallest files come first,
    so that a large mesh does not displace code.
    """
    files: dict[str, bytes] = {}
    left_out: dict[str, str] = {}
    room = MAX_BYTES
    for size, path in sorted(_regular_files(folder, left_out)):
        if size > room:
            left_out[path] = f"{size} bytes"
            continue
        try:
            files[path] = read_bytes(folder / path, room)
        except OSError as error:
            left_out[path] = error.strerror or type(error).__name__
        else:
            room -= len(files[path])
    return TaskCode(files, left_out)


def keep(code: TaskCode, run_dir: Path, place: Path) -> dict[str, Any]:
    """Keep the code of a task's folder in a run directory, unless it is there already.

    It is written in `place`, from which it may be moved. Returns what run.json records of it.
    """
    if not _folder(run_dir, code.hash).exists():
        code.write(_folder(place, code.hash))
    remember(CODE, code.hash)
    return {
        "hash": code.hash,
        "left_out": dict(code.left_out),
    }


def changes_since(checkpoint: Path, now: TaskCode) -> str | None:
    """Return in words how the code of a task differs from what a checkpoint was trained with.

    None if it is the same, or if the checkpoint is of a version that did not note its code.
    """
    then = _trained_with(checkpoint)
    if then in ("", now.hash):
        return None
    kept = _kept(checkpoint, then)
    if kept is None:
        return f"the task's code is not that of {checkpoint.name}, of which the run keeps none"
    return f"the task's code has changed since {checkpoint.name}: {difference(kept.code, now)}"


@contextmanager
def as_trained(
    checkpoint: Path, name: str, is_asked: bool, place: Path | None = None
) -> Iterator[tuple[Path, Path]]:
    """Make a folder called `name`, for the block, with the code that a checkpoint was trained with.

    It is made in a folder in `place`, or where temporary files belong. Yields it, and the file of
    the configuration with which the run trained by that code last. `is_asked` says whether the user
    has given --as-trained, which is the consent to run code of somebody else.

    Raises:
        UserError: the run has no such code, or not all of it; it is not as it was; or no run that
            was begun here has trained with it, and the user has not asked for it.
    """
    if not name or not FOLDER_NAME.holds(name):  # It may be what run.json says.
        raise UserError(f"--as-trained: the task {name!a} must be {FOLDER_NAME.allowed}.")
    then = _trained_with(checkpoint)
    if (kept := _kept(checkpoint, then)) is None:
        raise UserError(f"--as-trained: the run of {checkpoint} keeps no code of it.")
    if kept.code.left_out:
        what = ", ".join(f"{path} ({why})" for path, why in kept.code.left_out.items())
        raise UserError(f"--as-trained: {kept.folder} is not complete, it lacks {what}.")
    if kept.code.hash != then:
        raise UserError(
            f"--as-trained: {kept.folder} is not as it was when {checkpoint} was trained."
        )
    if not is_asked and not is_own(CODE, then):
        raise UserError(
            f"there is no task {name}, and no run that was begun here has used the code that this "
            f"one keeps, {kept.folder}: look at it. Then `play` and `mjfleet export` run it with "
            f"--as-trained, and `train` as a copy of it: tasks/{name}."
        )
    with TemporaryDirectory(prefix=".mjfleet-", dir=place) as folder:
        kept.code.write(Path(folder, name))
        yield Path(folder, name), kept.config


def code_of_restart(run_dir: Path, task_folder: Path) -> Path:
    """Return the folder of the code with which the newest attempt of a run trained.

    It is the task's own folder, or the copy that the run keeps if that has changed meanwhile.

    Raises:
        UserError: it has changed, and the run keeps no code of that attempt, or not all of it.
    """
    *_, last = record_of(run_dir).get("attempts") or [{}]
    code = last.get("code") or {}
    if read_code(task_folder).hash == code.get("hash"):
        return task_folder
    kept = _folder(run_dir, str(code.get("hash")))
    if code.get("left_out") or not kept.is_dir() or read_code(kept).hash != code.get("hash"):
        raise UserError(f"{task_folder} has changed meanwhile, and the run keeps no whole copy.")
    return kept


def _trained_with(checkpoint: Path) -> str:
    """Return the hash of the code that a checkpoint was trained with; empty: it says none."""
    found = about(checkpoint).get("task_hash")
    return found if isinstance(found, str) and re.fullmatch("[0-9a-f]{64}", found) else ""


def _kept(checkpoint: Path, task_hash: str) -> _Kept | None:
    """Return the snapshot of a checkpoint's run that has a hash, by what run.json says of it."""
    run_dir = checkpoint.absolute().parent.parent
    folder = _folder(run_dir, task_hash)
    try:
        attempts = record_of(run_dir).get("attempts", [])
    except UserError:
        return None
    for number, attempt in reversed([*enumerate(attempts, 1)]):
        match attempt.get("code"):
            case {"hash": found, "left_out": dict() as left_out}:
                texts = {str(path): str(why) for path, why in left_out.items()}
                if found == task_hash and folder.is_dir() and not folder.is_symlink():
                    config = config_of_attempt(run_dir, number, len(attempts))
                    return _Kept(folder, TaskCode(read_code(folder).files, texts), config)
    return None


def _folder(run_dir: Path, task_hash: str) -> Path:
    return run_dir / FOLDER / task_hash[:16]


def difference(then: TaskCode, now: TaskCode) -> str:
    """Return in which files two folders differ, and a unified diff, in a few printable lines."""
    both = sorted({*then.files, *now.files})
    changed = [path for path in both if then.files.get(path) != now.files.get(path)]
    others = {*then.left_out.items()} ^ {*now.left_out.items()}
    names = [*changed, *sorted({path for path, _ in others} - {*changed})]
    lines: list[str] = [", ".join(names)]
    for path in changed:
        lines += _diff(path, then.files.get(path), now.files.get(path))
    if len(lines) > SHOWN_LINES:
        lines[SHOWN_LINES:] = [f"... and {len(lines) - SHOWN_LINES} more lines"]
    return "\n".join(map(_line, lines))


def _regular_files(folder: Path, left_out: dict[str, str]) -> Iterator[tuple[int, str]]:
    """Yield size and path of each regular file; note why others are left out."""
    count = 0
    for place, folders, names in os.walk(folder):
        inside = os.path.relpath(place, folder)
        folders[:] = sorted(f for f in folders if f[0] != "." and f != "__pycache__")
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        if inside.count(os.sep) >= MAX_DEPTH:
            left_out[inside] = "too deep"
            folders.clear()
        for name in sorted([*links, *(n for n in names if n[0] != ".")]):
            path = os.path.normpath(os.path.join(inside, name))
            count += 1
            if count > MAX_FILES:
                left_out["..."] = f"more than {MAX_FILES} files"
                return
            try:
                status = os.lstat(folder / path)
            except OSError as error:
                left_out[path] = error.strerror or type(error).__name__
                continue
            if stat.S_ISREG(status.st_mode):
                yield status.st_size, path
            else:
                is_link = stat.S_ISLNK(status.st_mode)
                left_out[path] = "a symbolic link" if is_link else "no regular file"


def _diff(path: str, then: bytes | None, now: bytes | None) -> list[str]:
    """Return the lines of a unified diff, or one line about a file that is not text."""
    texts: list[list[str]] = []
    for data in (then, now):
        if data is not None and (len(data) > MAX_TEXT_BYTES or b"\0" in data):
            sizes = ["none" if d is None else f"{len(d):,} bytes" for d in (then, now)]
            return [f"{path}: {sizes[0]}, now {sizes[1]}"]
        texts.append((data or b"").decode(errors="replace").splitlines())
    names = f"trained/{path}", f"now/{path}"
    return list(difflib.unified_diff(texts[0], texts[1], *names, lineterm="", n=1))


def _line(text: str) -> str:
    text = printable(text).replace("\n", "\\n").expandtabs(4)
    return text if len(text) <= SHOWN_COLUMNS else f"{text[: SHOWN_COLUMNS - 3]}..."
