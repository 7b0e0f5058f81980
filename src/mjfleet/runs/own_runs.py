"""Notes that this installation keeps, in the user's state folder, of the runs that it began.

A file in a run directory may be anybody's: where, as whom and with whose code a run is trained
counts only if the note of the run says the same.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from platformdirs import user_state_path

from mjfleet.runs.run_json import read_record, write_json


@dataclass(frozen=True)
class Note:
    """What this installation knows of a run, or of a group of runs, from its attempts to train."""

    run_id: str
    directory: str  # Where it was trained last.
    placements: list[dict[str, Any]]
    """Values by dotted name, such as hosts and loggers, of each attempt that had others."""
    codes: list[str]
    """Hashes of the snapshots of the task's code, the newest last."""

    def has(self, name: str, value: Any) -> bool:
        """Return whether the run has been trained with a value of placement."""
        return any(name in placement and placement[name] == value for placement in self.placements)


def note_of(folder: Path) -> Note | None:
    """Return the note of a run directory or a group's folder; None: it was not begun here."""
    try:
        return Note(**json.loads(_file(read_record(folder)["id"]).read_bytes()))
    except (OSError, LookupError, ValueError, TypeError):
        return None


def tasks_dir_of(folder: Path) -> str | None:
    """Return the folder of task folders that the note of a run names, if it is there."""
    note = note_of(folder)
    found = note and note.placements[-1].get("tasks_dir")
    return found if found and os.path.isdir(found) else None


def id_of(folder: Path) -> str:
    """Return the id of a run that was begun here, or a new one; it is the run's id on W&B, too."""
    note = None if copied_from(folder) else note_of(folder)
    return note.run_id if note else uuid4().hex[:16]


def copied_from(folder: Path) -> str | None:
    """Return the directory of the run that a folder holds a copy of, if that is still there.

    It is where the run was trained last. A run that was downloaded from W&B, which has no command,
    is no copy.
    """
    with suppress(OSError, ValueError):
        if (note := note_of(folder)) and not os.path.samefile(note.directory, folder):
            ours, theirs = read_record(folder), read_record(Path(note.directory))
            same = all(ours.get(name) == theirs.get(name) for name in ("id", "argv", "started"))
            return note.directory if same and ours.get("argv") else None
    return None


def add_note(folder: Path, run_id: str, placement: Mapping[str, Any], code: str = "") -> None:
    """Note an attempt to train; where the state folder cannot be written, nothing is noted."""
    old, file = note_of(folder), _file(run_id)
    placements = [earlier for earlier in old.placements if earlier != placement] if old else []
    codes = [one for one in old.codes if one != code] if old else []
    place = str(folder.resolve())
    note = Note(run_id, place, [*placements, dict(placement)], [*codes, *filter(None, [code])])
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_json(file, asdict(note))


def remove_note(folder: Path) -> None:
    """Remove the note of a run or a group that is being removed."""
    note = note_of(folder)
    if note and note.directory == str(folder.resolve()):
        _file(note.run_id).unlink(missing_ok=True)


def _file(run_id: str) -> Path:
    name = hashlib.sha256(run_id.encode()).hexdigest()[:32]  # WANDB_RUN_ID may be any text.
    return user_state_path("mjfleet") / "runs" / f"{name}.json"
