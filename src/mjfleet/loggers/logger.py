"""What a sink is, and the thread in which each works beside training. Rank 0 has them."""

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Protocol

from mjfleet.utils.console import in_a_line

QUEUE_SIZE = 10_000
"""What a sink may fall behind, in rows and files, before those that follow are dropped."""

Row = Mapping[str, float | int | None]

logger = logging.getLogger(__name__)


class Logger(Protocol):
    """Takes what there is to tell of a run. All of it may take long; an exception ends the sink.

    To make one is quick, and does nothing that could fail.
    """

    def open(self) -> None:
        """Begin; called once, first."""

    def write(self, row: Row) -> None:
        """Store a row; `row["iteration"]` is its step, columns without a value are None."""

    def video(self, path: Path, iteration: int) -> None:
        """Store an MP4 file of the policy after an iteration, where videos can be shown."""

    def checkpoint(self, path: Path, iteration: int) -> None:
        """Store a checkpoint, where that is wanted."""

    def close(self, has_failed: bool) -> None:
        """Store what is left of a run, which may have failed, and let go; called once, last."""

    @abstractmethod
    def abandon(self) -> str:
        """Let go without waiting, from any thread; returns what becomes of the rest, in words."""


class SinkThread:
    """A sink at work in a thread. Training hands over what there is, and never waits.

    What does not fit into the queue is dropped, and counted. A sink that fails, that has dropped
    something or is not done in time has one warning.
    """

    def __init__(self, name: str, sink: Logger) -> None:
        self._name, self._sink = name, sink
        self._queue: SimpleQueue[Callable[[Logger], object] | None] = SimpleQueue()
        self._dropped = 0
        self._has_failed = False
        self._is_given_up = False
        self._is_done = Event()
        Thread(target=self._work, name=name, daemon=True).start()

    def put(self, action: Callable[[Logger], object]) -> None:
        """Have the sink do something after all that it was given before."""
        if self._is_given_up:
            return
        if self._queue.qsize() < QUEUE_SIZE:
            self._queue.put(action)
        else:
            self._dropped += 1

    def settle(self, seconds: float) -> None:
        """Wait until the sink has done all that it was given, but no longer than that."""
        if not self._is_given_up and self._queue.qsize() < QUEUE_SIZE:
            done = Event()
            self._queue.put(lambda sink: done.set())
            done.wait(seconds)

    def finish(self, has_failed: bool) -> None:
        """Have the sink close after all that it was given."""
        self._has_failed = has_failed
        self._queue.put(None)

    def join(self, seconds: float) -> None:
        """Wait until the sink is closed, but no longer than that; then give it up."""
        try:
            self._is_done.wait(seconds)
        finally:  # A second signal ends the waiting.
            lacks = []
            if self._dropped:
                lacks.append(f"was too slow for {self._dropped} rows or files, which it lacks")
            if not self._is_done.is_set():
                self._is_given_up = True
                lacks.append(f"did not finish in time: {self._sink.abandon()}")
            if lacks:
                logger.warning("%s %s", self._name, "; it ".join(lacks))

    def _work(self) -> None:
        try:
            self._sink.open()
            while action := self._queue.get():
                action(self._sink)
            self._sink.close(self._has_failed)
        except Exception as error:
            if not self._is_given_up:
                self._is_given_up = True
                why = in_a_line(error)
                logger.warning("%s failed, training goes on without it: %s", self._name, why)
                self._sink.abandon()
        finally:
            self._is_done.set()
