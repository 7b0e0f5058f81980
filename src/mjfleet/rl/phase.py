"""What a worker is doing, and what the training loop tells its heartbeat. Imports nothing heavy."""

from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum
from typing import Protocol


class Phase(IntEnum):
    """What a worker is doing."""

    START = 0
    """Importing."""
    BUILD = 1
    """Building environments and networks, loading a checkpoint."""
    COLLECT = 2
    LEARN = 3
    EVALUATE = 4
    SAVE = 5
    CLOSE = 6
    DONE = 7


class HeartbeatLike(Protocol):
    """What the training loop reports its progress to."""

    def enter(self, phase: Phase, iteration: int | None = None) -> None:
        """Report the beginning of a phase, and the iteration that it belongs to."""

    def beat(self) -> None:
        """Report progress within a phase."""

    def excused(self, phase: Phase | None = None) -> AbstractContextManager[None]:
        """Return a context for work that may take long without a beat, as a phase of its own."""
        ...


class NoHeartbeat:
    """A heartbeat that nobody watches."""

    def enter(self, phase: Phase, iteration: int | None = None) -> None:
        """Report to nobody."""

    def beat(self) -> None:
        """Report to nobody."""

    def excused(self, phase: Phase | None = None) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()
