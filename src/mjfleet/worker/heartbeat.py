"""A worker's phase, iteration and last step, in shared memory. Imports nothing heavy."""

import ctypes
import mmap
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from mjfleet.rl.worker_phases import HeartbeatBase, Phase

START_SECONDS = 120.0  # The least that a worker may take before training begins: disks are slow.
ASLEEP_SECONDS = 5.0  # After a longer gap between two looks, the process that looks was suspended.


class Heartbeat(ctypes.Structure, HeartbeatBase):
    """Written by one worker, read by processes of its host; each number is written in one piece."""

    _fields_ = (
        ("last_beat", ctypes.c_double),
        ("pid", ctypes.c_int64),
        ("iteration", ctypes.c_int64),
        ("_phase", ctypes.c_int64),
        ("excuses", ctypes.c_int64),
        ("stopped_by", ctypes.c_int64),
        ("has_learned", ctypes.c_bool),
    )
    last_beat: float  # By the monotonic clock; 0 before the first.
    pid: int  # The worker's process number; 0 before it has started.
    iteration: int  # The current one, counted from 1; 0 before the first.
    excuses: int  # How many blocks of `excused` the worker is inside.
    stopped_by: int  # In phase DONE: the signal that ended training early; 0: none did.
    has_learned: bool  # Whether an optimiser may have stepped.

    @classmethod
    def in_file(cls, path: Path) -> Self:
        """Return the heartbeat that a worker and its watchdog share; the first of both makes it."""
        with path.open("a+b") as file:
            file.truncate(ctypes.sizeof(cls))
            return cls.from_buffer(mmap.mmap(file.fileno(), 0))

    def start(self) -> None:
        self.beat()
        self.pid = os.getpid()

    def beat(self) -> None:
        self.last_beat = time.monotonic()

    def enter(self, phase: Phase, iteration: int | None = None) -> None:
        self.beat()
        self._phase = phase
        self.has_learned |= phase == Phase.LEARN
        if iteration is not None:
            self.iteration = iteration

    def finish(self, stopped_by: int | None) -> None:
        self.stopped_by = stopped_by or 0
        self.enter(Phase.DONE)

    @contextmanager
    def excused(self, phase: Phase | None = None) -> Iterator[None]:
        """Surround work that may take long without a beat: compiling, saving, rendering."""
        before = self.phase
        self.excuses += 1
        if phase is not None:
            self.enter(phase)
        try:
            yield
            self.enter(before)
        finally:
            self.beat()
            self.excuses -= 1

    @property
    def phase(self) -> Phase:
        return Phase(self._phase)

    @property
    def has_begun(self) -> bool:
        return self.phase >= Phase.COLLECT

    @property
    def silence(self) -> float:
        """Seconds since the last beat; 0 before the worker has started."""
        return time.monotonic() - self.last_beat if self.pid else 0.0


class HangDetector:
    """Finds out whether none of some workers moves, for a process that asks again and again.

    Args:
        heartbeats: the workers'.
        limit: seconds allowed between two beats, at least START_SECONDS before training begins;
            0: any number. Silence before this object was made does not count.
    """

    def __init__(self, heartbeats: Sequence[Heartbeat], limit: float) -> None:
        self._heartbeats, self._limit = heartbeats, limit
        self.start_again()

    def start_again(self) -> None:
        """Count silence from now on."""
        self._looked = self._since = time.monotonic()

    def hangs(self) -> bool:
        """Return whether some workers are not done, and none of these has moved for too long."""
        before, self._looked = self._looked, time.monotonic()
        if self._looked - before > ASLEEP_SECONDS:
            self._since = self._looked
        if not self._limit or any(heartbeat.excuses for heartbeat in self._heartbeats):
            return False
        at_work = [one for one in self._heartbeats if one.phase != Phase.DONE]
        return bool(at_work) and all(map(self._is_silent, at_work))

    def _is_silent(self, heartbeat: Heartbeat) -> bool:
        patience = self._limit if heartbeat.has_begun else max(self._limit, START_SECONDS)
        return self._looked - max(self._since, heartbeat.last_beat) > patience
