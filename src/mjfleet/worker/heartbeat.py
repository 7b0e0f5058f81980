"""A worker's heartbeat: where it is and when it last moved, in memory that others can read."""

import ctypes
import mmap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mjfleet.rl.phase import Phase

START_SECONDS = 120.0
"""What importing may take from a slow disk."""


class _Memory(ctypes.Structure):
    """Aligned numbers, each of which is written in one piece."""

    _fields_ = (
        ("beaten", ctypes.c_double),
        ("pid", ctypes.c_int64),
        ("phase", ctypes.c_int64),
        ("iteration", ctypes.c_int64),
        ("excuses", ctypes.c_int64),
        ("stopped_by", ctypes.c_int64),
    )


class Heartbeat:
    """Written by one worker, read by whoever watches it on the same host."""

    def __init__(self, path: Path | None = None) -> None:
        """Open a file of `create`; without one, nobody but this process sees the pulse."""
        if path is None:
            memory = mmap.mmap(-1, ctypes.sizeof(_Memory))
        else:
            with path.open("r+b") as file:
                memory = mmap.mmap(file.fileno(), 0)
        self._memory = _Memory.from_buffer(memory)

    @staticmethod
    def create(path: Path) -> "Heartbeat":
        """Make the file by which a worker and its launcher share a pulse."""
        path.write_bytes(bytes(ctypes.sizeof(_Memory)))
        return Heartbeat(path)

    def start(self, pid: int) -> None:
        """Begin to beat, as the process of that number."""
        self.beat()
        self._memory.pid = pid

    def beat(self) -> None:
        """Say that this worker has moved."""
        self._memory.beaten = time.monotonic()

    def enter(self, phase: Phase, iteration: int | None = None) -> None:
        """Say what comes next, and in which iteration."""
        self.beat()
        self._memory.phase = phase
        if iteration is not None:
            self._memory.iteration = iteration

    def finish(self, stopped_by: int | None) -> None:
        """Say that everything is done; the signal, if any, by which training ended early."""
        self._memory.stopped_by = stopped_by or 0
        self.enter(Phase.DONE)

    @contextmanager
    def excused(self, phase: Phase | None = None) -> Iterator[None]:
        """Do something that may take its time without a beat: compile, save, render."""
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
        """The worker's process, 0 before it has started."""
        return self._memory.pid

    @property
    def phase(self) -> Phase:
        """What it is doing."""
        return Phase(self._memory.phase)

    @property
    def iteration(self) -> int:
        """The iteration that it is in, counted from 1; 0 before the first."""
        return self._memory.iteration

    @property
    def stopped_by(self) -> int | None:
        """Once done: the signal by which training ended early."""
        return self._memory.stopped_by or None

    @property
    def has_begun(self) -> bool:
        """Whether training has begun."""
        return self.phase >= Phase.COLLECT

    @property
    def is_excused(self) -> bool:
        """Whether it is at something that may take its time."""
        return self._memory.excuses > 0

    def hangs(self, limit: float, since: float) -> bool:
        """Whether it should have moved.

        Args:
            limit: seconds that it may take between two beats; before training begins, no less than
                START_SECONDS.
            since: from when on it has been watched, by the monotonic clock.
        """
        silence = time.monotonic() - max(since, self._memory.beaten)
        patience = limit if self.has_begun else max(limit, START_SECONDS)
        return self.phase != Phase.DONE and silence > patience

    @property
    def silence(self) -> float:
        """Seconds since it last moved; 0 before it has started."""
        return time.monotonic() - self._memory.beaten if self.pid else 0.0
