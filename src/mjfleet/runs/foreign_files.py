"""Distinguishes what runs of this installation have written from what somebody else has made.

A file says what is learned. Where, as whom, with which environment and with whose code something
runs comes from the command line, or from a file that says the same as a run which this installation
began: the user's state folder keeps a hash of each. Runs in the launcher and in workers.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from platformdirs import user_state_path

from mjfleet.cli.flag_table import as_flag
from mjfleet.config import TeacherConfig, TrainConfig, from_dict
from mjfleet.config.dict_conversion import by_dotted_name, to_dict, value_at
from mjfleet.config.field_kinds import PLACEMENT, TEACHER
from mjfleet.errors import UserError
from mjfleet.registry import FoundTask
from mjfleet.utils.atomic_write import append

WRITTEN = "written"  # The file in the state folder: a hash in each line.
CLASS, CODE, WANDB_RUN = "class", "task", "W&B run"  # Kinds of text that are remembered.
IsGiven = Callable[[str], bool]
"""Whether the command line gives a field, by its dotted name."""


def remember(kind: str, text: str) -> None:
    """Keep in the user's state folder, if there is one, that a run of ours has this text."""
    path = user_state_path("mjfleet") / WRITTEN
    if path.is_absolute() and not is_own(kind, text):
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            append(path, _hash(kind, text) + b"\n")


def is_own(kind: str, text: str) -> bool:
    """Return whether `remember` has kept that `kind` of text."""
    path = user_state_path("mjfleet") / WRITTEN
    try:
        return path.is_absolute() and _hash(kind, text) in path.read_bytes().split()
    except OSError:
        return False


def placement_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of PLACEMENT, and the teacher, that differ from the defaults, by name."""
    defaults = by_dotted_name(to_dict(TrainConfig()))
    defaults |= by_dotted_name({"agent": {"teacher": to_dict(TeacherConfig())}})
    names = sorted(PLACEMENT | {TEACHER})
    values = {dotted: value_at(data, dotted, defaults[dotted]) for dotted in names}
    return {dotted: value for dotted, value in values.items() if value != defaults[dotted]}


def remember_placement(data: Mapping[str, Any]) -> None:
    """Remember the placement of a configuration that is about to be written."""
    remember(*_as_text(placement_of(data)))


def leave_out_placement(data: dict[str, Any], name: str, is_given: IsGiven | None = None) -> None:
    """Remove placement from the data of a file, unless a run of ours has the same.

    Args:
        data: the file's.
        name: how messages name the file.
        is_given: whether the command line gives a field. None: no removed value is needed.

    Raises:
        UserError: the command needs a value that is removed, and is not given one.
    """
    placement = placement_of(data)
    if is_own(*_as_text(placement)):
        return
    # A default would replace what the task's author has set.
    for dotted in PLACEMENT | placement.keys():
        folder, _, last = dotted.rpartition(".")
        parent = value_at(data, folder) if folder else data
        if isinstance(parent, dict):
            parent.pop(last, None)
    placement.pop(TEACHER, None)  # --teacher is asked for where it is needed.
    folder = placement.get("tasks_dir")
    if isinstance(folder, str) and not os.path.isdir(folder):
        del placement["tasks_dir"]  # Of another machine.
    needed = {n: v for n, v in placement.items() if is_given and not is_given(n)}
    if needed:
        flags = " ".join(f"{as_flag(dotted, value)!a}" for dotted, value in needed.items())
        raise UserError(
            f"{name}: what it says of {', '.join(needed)} does not count, since no run that was "
            f"begun here has the same. Give what you want by flags; the file says {flags}"
        )


def from_file(
    found: FoundTask, data: Mapping[str, Any], is_given: IsGiven = lambda name: False
) -> TrainConfig:
    """Return a task's configuration with the data of a file.

    Raises:
        UserError: a value is not allowed, or names a class that neither belongs to the task nor has
            been used by a run of ours.
    """
    default = found.defaults()
    config, usual = from_dict(default, data), default.agent.class_paths.values()
    for dotted, path in config.agent.class_paths.items():
        if not (path in usual or found.owns(path) or is_own(CLASS, path) or is_given(dotted)):
            raise UserError(
                f"{dotted} is {path!a}: a file may name classes of {found.folder} alone. Name "
                "others in the task's config.py, or by a flag of `train`: "
                f"{as_flag(dotted, path)!a}"
            )
    return config


def _as_text(placement: Mapping[str, Any]) -> tuple[str, str]:
    return "placement", json.dumps(placement, sort_keys=True, default=str)


def _hash(kind: str, text: str) -> bytes:
    message = f"mjfleet {kind}\n{text}".encode(errors="surrogatepass")
    return hashlib.sha256(message).hexdigest().encode()
