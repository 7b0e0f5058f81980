"""Keeps the working directory. Used in every process that runs a task's code."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def same_folder() -> Iterator[None]:
    """Return to the working directory after the block, or after a function that this decorates.

    A task's code may change it, and names that the user typed are relative to it.
    """
    folder = os.open(".", os.O_PATH)  # Also of one that has been removed.
    try:
        yield
    finally:
        os.fchdir(folder)
        os.close(folder)
