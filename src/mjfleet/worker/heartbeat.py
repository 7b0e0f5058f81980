"""A worker's heartbeat: its phase, iteration and last step, in memory that its launcher can read.

Imports nothing heavy.
"""

import ctypes
import mmap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mjfleet.rl.phase import Phase

START_SECONDS = 120.0
"""The least time that a worker may take before training begins: disks can be slow."""


class _Memory(ctypes.Structure):
    """Aligned numbers, each of which is written in one piece."""

    _fields_ = (
        ("last_beat", ctypes.c_double),
        ("pid", ctypes.c_int64),
        ("phase", ctypes.c_int64),
        ("iteration", ctypes.c_int64),
        ("excuses", ctypes.c_int64),
        ("stopped_by", ctypes.c_int64),
    )


class Heartbeat:
    """Written by one worker, read by processes of the same host that watch it."""

    def __init__(self, path: Path | None = None) -> None:
        """Open a file that `create` has made; without one, only this process sees the heartbeat."""
        if path is None:
            memory = mmap.mmap(-1, ctypes.sizeof(_Memory))
        else:
            with path.open("r+b") as file:
                memory = mmap.mmap(file.fileno(), 0)
        self._memory = _Memory.from_buffer(memory)

    @staticmethod
    def create(path: Path) -> "Heartbeat":
        """Make the file that a worker and its launcher share."""
        path.write_bytes(bytes(ctypes.sizeof(_Memory)))
        return Heartbeat(path)

    def start(self, pid: int) -> None:
        """Begin to beat, as the process of this number."""
        self.beat()
        self._memory.pid = pid

    def beat(self) -> None:
        """Report progress."""
        self._memory.last_beat = time.monotonic()

    def enter(self, phase: Phase, iteration: int | None = None) -> None:
        """Report the beginning of a phase, and the iteration that it belongs to."""
        self.beat()
        self._memory.phase = phase
        if iteration is not None:
            self._memory.iteration = iteration

    def finish(self, stopped_by: int | None) -> None:
        """Report the end, and the signal, if any, that ended training early."""
        self._memory.stopped_by = stopped_by or 0
        self.enter(Phase.DONE)

    @contextmanager
    def excused(self, phase: Phase | None = None) -> Iterator[None]:
        """Surround work that may take long without a beat: compiling, saving, rendering."""
        before = self.phase
        self._memory.excuses += 1
        if phase is not None:
            self.enter(phase)
        try:
            yield
            self.enter(before)
        finally:
            self.beat()
            self._memory.excuses -= 1

    @property
    def pid(self) -> int:
        """The worker's process number; 0 before it has started."""
        return self._memory.pid

    @property
    def phase(self) -> Phase:
        """What the worker is doing."""
        return Phase(self._memory.phase)

    @property
    def iteration(self) -> int:
        """The current iteration, counted from 1; 0 before the first."""
        return self._memory.iteration

    @property
    def stopped_by(self) -> int | None:
        """In phase DONE: the signal that ended training early, if one did."""
        return self._memory.stopped_by or None

    @property
    def has_begun(self) -> bool:
        """Whether training has begun."""
        return self.phase >= Phase.COLLECT

    @property
    def is_excused(self) -> bool:
        """Whether the worker is inside a block of `excused`."""
        return self._memory.excuses > 0

    def hangs(self, limit: float, since: float) -> bool:
        """Return whether the worker has been silent for too long.

        Args:
            limit: seconds allowed between two beats; at least START_SECONDS before training begins.
            since: when watching began, by the monotonic clock; silence before that does not count.
        """
        silence = time.monotonic() - max(since, self._memory.last_beat)
        patience = limit if self.has_begun else max(limit, START_SECONDS)
        return self.phase != Phase.DONE and silence > patience

    @property
    def silence(self) -> float:
        """Seconds since the last beat; 0 before the worker has started."""
        return time.monotonic() - self._memory.last_beat if self.pid else 0.0
