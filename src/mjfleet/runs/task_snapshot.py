"""Keeps a task's folder as it was when a run was trained, and shows how another one differs."""

import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from mjfleet.config import TrainConfig
from mjfleet.registry import FoundTask, bundled_tasks
from mjfleet.runs.attempts import TOKEN, attempt_of, run_dir_of
from mjfleet.runs.checkpoints import about
from mjfleet.runs.own_runs import note_of
from mjfleet.runs.run_json import record_of
from mjfleet.utils.console import printable
from mjfleet.utils.safe_read import open_regular

FOLDER = "task"  # In the run directory; a snapshot is `task/<beginning of its hash>`.
SNAPSHOT_MAX_BYTES = 64 << 20  # The size of a snapshot; the largest files are left out.
Modules = Mapping[str, Path]
NONE: Modules = MappingProxyType({})
OWN_IMPORT = re.compile(rb"^[ \t]*from \.(\w+)", re.MULTILINE)


@dataclass(frozen=True)
class TaskCode:
    """The content of a task's folder, without compiled Python and hidden files.

    The folders of bundled tasks that it imports are in it, as `go1/env.py`.
    """

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
    """The copy of a task's folder in a run directory, or why there is none that can be used."""

    folder: Path | None = None
    owner: Literal["own", "theirs", "none"] = "none"  # `own`: this installation trained with it.
    why_none: str = ""


def read_code(folder: Path, modules: Modules = NONE) -> TaskCode:
    """Read a task's folder, or a snapshot of it, and the bundled tasks that it imports.

    `modules` are other files that it is trained with, see FoundTask.modules. A snapshot has them.
    """
    files, left_out = dict[str, bytes](), list[str]()
    _read(_files_in(folder), files, left_out)
    _read({name: path for name, path in modules.items() if name not in files}, files, left_out)
    for base in _bases(folder, files):
        inside = _files_in(bundled_tasks() / base).items()
        _read({f"{base}/{name}": path for name, path in inside}, files, left_out)
    return TaskCode(dict(sorted(files.items())), sorted(left_out))


def code_of(found: FoundTask, config: TrainConfig) -> TaskCode:
    """Read a task's folder, and the files of the classes that the configuration names."""
    return read_code(found.folder, found.modules(config.agent.classes))


def _files_in(folder: Path) -> dict[str, Path]:
    """Return what is in a folder and its folders, but for compiled Python and hidden files."""
    paths = {path.relative_to(folder): path for path in folder.rglob("*")}
    return {
        name.as_posix(): path
        for name, path in paths.items()
        if not any(part[0] == "." or part == "__pycache__" for part in name.parts)
        and (path.is_symlink() or not path.is_dir())
    }


def _read(paths: Modules, files: dict[str, bytes], left_out: list[str]) -> None:
    """Add the files of these paths, by their names: the smallest first, code before meshes."""
    room = SNAPSHOT_MAX_BYTES - sum(map(len, files.values()))
    for name, path in sorted(paths.items(), key=lambda item: (item[1].lstat().st_size, item)):
        try:
            with open_regular(path, room) as file:
                data = files[name] = file.read()
            room -= len(data)
        except OSError:
            left_out.append(name)


def _bases(folder: Path, files: Mapping[str, bytes]) -> list[str]:
    """Return the folders of bundled tasks that modules of a task's folder import, by their names.

    What the folder itself has of such a name is imported instead. A snapshot has them all.
    """
    own = [data for path, data in files.items() if path.endswith(".py") and "/" not in path]
    names = sorted({name.decode() for data in own for name in OWN_IMPORT.findall(data)})
    return [
        name
        for name in names
        if (bundled_tasks() / name).is_dir()
        and not ((folder / name).exists() or (folder / f"{name}.py").exists())
    ]


def keep(code: TaskCode, run_dir: Path) -> None:
    """Write a snapshot into a run directory, unless it is there already."""
    folder = snapshot_folder(run_dir, code.hash)
    if not folder.exists():
        aside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        aside.mkdir(parents=True)
        for path, data in code.files.items():
            (aside / path).parent.mkdir(parents=True, exist_ok=True)
            (aside / path).write_bytes(data)
        aside.rename(folder)


def changes_since(source: Path, task_folder: Path, modules: Modules = NONE) -> str | None:
    """Return in which files a task differs from that of a checkpoint, or of a run's newest attempt.

    None if it is the same, or if that code is not recorded. For `modules` see `read_code`.
    """
    then, now = _hash_in(source), read_code(task_folder, modules)
    if then in ("", now.hash):
        return None
    run_dir = run_dir_of(source)
    if not (run_dir and (kept := snapshot_folder(run_dir, then)).is_dir()):
        return f"the task's code is not that of {source.name}, of which the run keeps none"
    old = read_code(kept).files
    names = [n for n in sorted({*old, *now.files}) if old.get(n) != now.files.get(n)]
    changed = printable(", ".join(names)) or "files of which there is no copy"
    pairs = {base: (kept / base, bundled_tasks() / base) for base in _bases(task_folder, now.files)}
    pairs |= {name: (kept / name, path) for name, path in modules.items() if name in now.files}
    usual = kept, task_folder
    folders = [pairs.get(name, pairs.get(name.partition("/")[0], usual)) for name in names]
    known = {pair: "-r" if pair[0].exists() else "-rN" for pair in folders}  # N: as if empty.
    shown = "; ".join(shlex.join(["diff", how, *map(str, pair)]) for pair, how in known.items())
    return f"the task's code has changed since {source.name}: {changed}; `{shown}` shows how"


def snapshot_of(source: Path) -> Snapshot:
    """Return the snapshot with which a checkpoint, or a run's newest attempt, was trained.

    There is none if it is not complete, or has been changed.
    """
    run_dir, wanted = run_dir_of(source), _hash_in(source)
    attempts = record_of(run_dir).get("attempts", []) if run_dir else []
    code = [c for one in attempts if (c := one.get("code") or {}).get("hash") == wanted]
    folder = snapshot_folder(run_dir or source, wanted)
    if not (run_dir and code and folder.is_dir()) or folder.is_symlink():
        return Snapshot(why_none=f"{source}: the run keeps no copy of the task's code.")
    if left_out := code[-1].get("left_out"):
        why = f"{folder} is not a whole copy of the task's code, it lacks {', '.join(left_out)}."
        return Snapshot(why_none=why)
    for compiled in [*folder.rglob("__pycache__")]:  # The hash is without it.
        shutil.rmtree(compiled, ignore_errors=True)
    if read_code(folder).hash != wanted:
        return Snapshot(why_none=f"{folder} is not as it was when {source} was trained.")
    note = note_of(run_dir)
    return Snapshot(folder, "own" if note and wanted in note.codes else "theirs")


def is_snapshot(folder: Path) -> bool:
    """Return whether a task's folder is a snapshot."""
    return folder.parent.name == FOLDER and re.fullmatch("[0-9a-f]{16}", folder.name) is not None


def _hash_in(source: Path) -> str:
    """Return the hash of the code of a checkpoint or a run's newest attempt; "": it is unknown.

    Of a checkpoint that another run has written, it is that of the attempt to which it belongs.
    """
    run_dir = run_dir_of(source)
    attempts = (record_of(run_dir).get("attempts") if run_dir else None) or [{}]
    begun = [one for one in attempts if one.get("code")] or [{}]  # Those that could start.
    entry = begun[-1] if source == run_dir else attempts[attempt_of(source, attempts) - 1]
    if source == run_dir or TOKEN in entry:
        found = (entry.get("code") or {}).get("hash")
    else:
        found = about(source).get("task_hash")
    return found if isinstance(found, str) and re.fullmatch("[0-9a-f]{64}", found) else ""


def snapshot_folder(run_dir: Path, task_hash: str) -> Path:
    return run_dir / FOLDER / task_hash[:16]
