"""When Python looks for garbage. Imports nothing heavy."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Prevent Python from looking for objects that refer to each other alone, and freeing them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def lasting_imports() -> Iterator[None]:
    """Leave all objects that exist after the block out of Python's garbage collections.

    Libraries make a million objects, none of which is garbage. To look at them again and again took
    half of the time from here to a worker's first iteration. The collector's documentation advises
    this also for processes that fork.
    """
    with no_garbage_collection():
        yield
        gc.freeze()
