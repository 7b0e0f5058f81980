"""The contract of a logger, and the thread in which each logger works. Runs in rank 0."""

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Protocol

from mjfleet.utils.console import in_a_line

QUEUE_SIZE = 10_000
"""Number of rows and files that may wait for a logger before newer ones are dropped."""

Row = Mapping[str, float | int | None]

logger = logging.getLogger(__name__)


class Logger(Protocol):
    """Takes rows and files of a run. Each call may take long; an exception ends the logger.

    The constructor is quick and cannot fail.
    """

    def open(self) -> None:
        """Begin. Called once, first."""

    def write(self, row: Row) -> None:
        """Store a row. `row["iteration"]` is its step. Columns without a value are None."""

    def video(self, path: Path, iteration: int) -> None:
        """Store an MP4 file of the policy after an iteration, if the logger shows videos."""

    def checkpoint(self, path: Path, iteration: int) -> None:
        """Store a checkpoint, if the logger keeps checkpoints."""

    def close(self, has_failed: bool) -> None:
        """Store the rest of a run, which may have failed. Called once, last."""

    @abstractmethod
    def abandon(self) -> str:
        """Give up without waiting, from any thread; return what happens to the rest, in words."""


class LoggerThread:
    """Runs a logger in a thread, so that training never waits for it.

    Rows and files that do not fit into the queue are dropped and counted. A logger that fails, has
    dropped something or does not finish in time causes one warning.
    """

    def __init__(self, name: str, wrapped: Logger) -> None:
        self._name, self._logger = name, wrapped
        self._queue: SimpleQueue[Callable[[Logger], object] | None] = SimpleQueue()
        self._dropped = 0
        self._has_failed = False
        self._is_given_up = False
        self._is_done = Event()
        Thread(target=self._work, name=name, daemon=True).start()

    def put(self, action: Callable[[Logger], object]) -> None:
        """Queue an action for the logger."""
        if self._is_given_up:
            return
        if self._queue.qsize() < QUEUE_SIZE:
            self._queue.put(action)
        else:
            self._dropped += 1

    def settle(self, seconds: float) -> None:
        """Wait until the logger has completed all queued actions, at most for `seconds`."""
        if not self._is_given_up and self._queue.qsize() < QUEUE_SIZE:
            done = Event()
            self._queue.put(lambda _: done.set())
            done.wait(seconds)

    def finish(self, has_failed: bool) -> None:
        """Close the logger after all queued actions."""
        self._has_failed = has_failed
        self._queue.put(None)

    def join(self, seconds: float) -> None:
        """Wait until the logger is closed, at most for `seconds`. Then give it up."""
        try:
            self._is_done.wait(seconds)
        finally:  # A second signal interrupts the wait.
            lacks = []
            if self._dropped:
                lacks.append(f"was too slow for {self._dropped} rows or files, which it lacks")
            if not self._is_done.is_set():
                self._is_given_up = True
                lacks.append(f"did not finish in time: {self._logger.abandon()}")
            if lacks:
                logger.warning("%s %s", self._name, "; it ".join(lacks))

    def _work(self) -> None:
        try:
            self._logger.open()
            while action := self._queue.get():
                action(self._logger)
            self._logger.close(self._has_failed)
        except Exception as error:
            if not self._is_given_up:
                self._is_given_up = True
                why = in_a_line(error)
                logger.warning("%s failed, training goes on without it: %s", self._name, why)
                self._logger.abandon()
        finally:
            self._is_done.set()
