"""Files that are either whole or as they were: written aside, flushed to disk, then renamed."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Create or replace `path` with what `write` writes; on any failure it stays as it was.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with aside.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
