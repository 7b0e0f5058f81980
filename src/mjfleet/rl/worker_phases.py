"""The phases of a worker, and the heartbeat's interface. Imports nothing heavy."""

from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum


class Phase(IntEnum):
    START = 0  # Importing.
    BUILD = 1  # Building environments and networks, loading a checkpoint.
    COLLECT = 2
    LEARN = 3
    EVALUATE = 4
    SAVE = 5
    CLOSE = 6
    DONE = 7


class HeartbeatBase:
    """Receives the progress of the training loop. This one does nothing with it."""

    def enter(self, phase: Phase, iteration: int | None = None) -> None:
        """Report the beginning of a phase, and the iteration that it belongs to."""

    def beat(self) -> None:
        """Report progress within a phase."""

    def excused(self, phase: Phase | None = None) -> AbstractContextManager[None]:
        """Return a context for work that may take long without a beat, as a phase of its own."""
        del phase
        return nullcontext()
