"""Keeps the working directory. Used in every process that runs a task's code."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def same_folder() -> Iterator[None]:
    """Return to the working directory after the block, or after a function that this decorates.

    A task's code may change it, and names that the user typed are relative to it.
    """
    here = os.open(".", os.O_PATH)  # Also of one that has been removed.
    try:
        yield
    finally:
        os.fchdir(here)
        os.close(here)


def from_here(path: Path) -> Path:
    """Return the path relative to the working directory, if it is in there: as users name it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
