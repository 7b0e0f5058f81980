"""The contract of a logger, and the thread in which each logger works. Runs in rank 0."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread

from mjfleet.utils.console import in_a_line

QUEUE_SIZE = 10_000  # Rows and files that may wait for a logger before newer ones are dropped.
Row = Mapping[str, float | int | None]

logger = logging.getLogger(__name__)


class Logger:
    """Takes rows and files of a run. Each call may take long; an exception ends the logger.

    The constructor is quick and cannot fail. What a logger has no use for, it ignores.
    """

    def open(self) -> None:
        """Begin. Called once, first."""

    def write(self, row: Row) -> None:
        """Store a row. `row["iteration"]` is its step. Columns without a value are None."""

    def video(self, path: Path, iteration: int) -> None:
        """Store an MP4 file of the policy after an iteration."""

    def checkpoint(self, path: Path, iteration: int) -> None:
        """Store a checkpoint."""

    def close(self, has_failed: bool = False) -> None:
        """Store the rest of a run, which may have failed. Called once, last."""

    def abandon(self) -> str:
        """Give up without waiting, from any thread; return what happens to the rest, in words."""
        return "its last rows are lost"


class LoggerThread(Thread):
    """Runs a logger, so that training never waits for it.

    Rows and files that do not fit into the queue are dropped and counted. A logger that fails, has
    dropped something or does not finish in time causes one warning.
    """

    def __init__(self, name: str, wrapped: Logger) -> None:
        super().__init__(name=name, daemon=True)
        self._logger = wrapped
        self._queue: SimpleQueue[Callable[[Logger], object] | None] = SimpleQueue()
        self._dropped = 0
        self._is_given_up = False
        self.start()

    def put(self, action: Callable[[Logger], object]) -> None:
        """Queue an action for the logger, unless it has failed."""
        if self.is_alive() and self._queue.qsize() < QUEUE_SIZE:
            self._queue.put(action)
        else:
            self._dropped += self.is_alive()

    def settle(self, seconds: float) -> None:
        """Wait until the logger has completed all queued actions, at most for `seconds`."""
        if self.is_alive() and self._queue.qsize() < QUEUE_SIZE:
            done = Event()
            self._queue.put(lambda _: done.set())
            done.wait(seconds)

    def finish(self, has_failed: bool) -> None:
        """Close the logger after all queued actions."""
        self._queue.put(lambda logger: logger.close(has_failed))
        self._queue.put(None)

    def end(self, seconds: float) -> None:
        """Wait until the logger is closed, at most for `seconds`. Then give it up."""
        try:
            self.join(seconds)
        finally:  # A second signal interrupts the wait.
            lacks = []
            if self._dropped:
                lacks.append(f"was too slow for {self._dropped} rows or files, which it lacks")
            if self.is_alive():
                self._is_given_up = True
                lacks.append(f"did not finish in time: {self._logger.abandon()}")
            if lacks:
                logger.warning("%s %s", self.name, "; it ".join(lacks))

    def run(self) -> None:
        """Do what is queued."""
        try:
            self._logger.open()
            while action := self._queue.get():
                action(self._logger)
        except Exception as error:
            if not self._is_given_up:
                why = in_a_line(error)
                logger.warning("%s failed, training goes on without it: %s", self.name, why)
                self._logger.abandon()
