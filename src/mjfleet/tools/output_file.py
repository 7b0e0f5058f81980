"""Checks the file that a command was asked to write, before any work is done; writes it after."""

import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import BinaryIO

from mjfleet.errors import UserError
from mjfleet.runs.run_json import GROUP_FILE, RECORD_FILE
from mjfleet.utils.atomic_write import write_atomically


def check_output(flag: str, name: str, suffixes: Collection[str]) -> Path:
    """Return the path of a file that can be written. Its folder has to exist.

    Raises:
        UserError: it cannot be written, its name ends in none of `suffixes`, or a run needs it.
    """
    path = Path(name)
    if path.name in (RECORD_FILE, GROUP_FILE):
        raise UserError(f"{flag} {name}: a run's own file has this name; choose another.")
    if path.suffix not in suffixes:
        raise UserError(f"{flag} {name}: the file's name must end in {', '.join(suffixes)}.")
    if path.is_dir():
        raise UserError(f"{flag} {name}: Is a directory.")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise UserError(f"{flag} {name}: {path.parent}: {error.strerror}.") from None
    return path


def write_output(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file as `write_atomically` does, and make its folder; UserError if it cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, write)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}.") from None
