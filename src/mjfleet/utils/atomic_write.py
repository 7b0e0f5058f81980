"""Files that are either whole or as they were before, and checkpoints by their names."""

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

BEST = "best.pt"
"""The checkpoint of the policy that was evaluated best."""


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Create or replace `path` with what `write` writes; on any failure it stays as it was.

    Written aside, flushed to disk, then renamed.

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
        _flush_folder(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    """Have the new name on disk too, not the file alone."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checkpoints_in(folder: Path) -> list[Path]:
    """The files model_<iteration>.pt of a folder, the oldest first."""
    found = [path for path in folder.glob("model_*.pt") if iteration_of(path) is not None]
    return sorted(found, key=lambda path: iteration_of(path) or 0)


def iteration_of(path: Path) -> int | None:
    """The iteration after which a checkpoint was written, by its name; None: it does not say."""
    number = path.stem.removeprefix("model_")
    return int(number) if path.stem != number and number.isdecimal() else None


def set_aside(folder: Path, iteration: int) -> Path | None:
    """Move checkpoints that are newer than `iteration` out of the way; returns where to, if any."""
    aside = None
    newer = [path for path in checkpoints_in(folder) if (iteration_of(path) or 0) > iteration]
    if newer:
        aside = folder / f"replaced_{datetime.now():%Y-%m-%d_%H-%M-%S}"
        aside.mkdir(exist_ok=True)
        for path in newer:
            path.replace(aside / path.name)
    for path in folder.glob(".*.tmp"):
        path.unlink()  # A write that was killed.
    return aside


def extend(path: Path, length: int, data: bytes) -> int:
    """Put `data` behind the first `length` bytes of a file; return its new length.

    Whatever followed them is cut off. On failure nothing follows them: no reader finds half a row,
    and to try again is to call this again.

    Raises:
        OSError: the disk is full, or the file cannot be written.
    """
    try:
        with path.open("r+b") as file:
            file.truncate(length)
            file.seek(length)
            file.write(data)
    except OSError:
        # What was cut off here may be the first part of `data`: a full disk takes what still fits.
        os.truncate(path, length)
        raise
    return length + len(data)
