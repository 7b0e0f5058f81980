"""Writes files completely or not at all. Used in every process."""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Create or replace `path` with what `write` writes. On a failure it stays as it was.

    The content goes to a temporary file, which is flushed to disk and then renamed. A link is
    replaced, not followed. A device or a pipe is written, because a file would take its place.
    OSError if the disk is full, or the folder cannot be written.
    """
    if path.exists() and not path.is_file() and not path.is_symlink():
        with path.open("wb") as file:
            write(file)
        return
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        aside.unlink(missing_ok=True)  # A killed process has left it, or it is somebody's link.
        with aside.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # The new name is to be on disk too.
        finally:
            os.close(folder)
    finally:
        aside.unlink(missing_ok=True)


def copy_atomically(original: BinaryIO, path: Path) -> None:
    """Create or replace `path` with what is left in a file, as `write_atomically` does."""
    write_atomically(path, lambda file: shutil.copyfileobj(original, file))


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a folder by its path in it, compiled Python excepted."""
    files = sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)): digest(path) for path in files if path.is_file()}


def digest(file: Path) -> str:
    """Return the SHA-256 of a file, or an empty text if there is none."""
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
