"""All loggers of a run besides the terminal. Runs in rank 0.

The other ranks wait while rank 0 logs. A row of metrics.csv takes it 20 microseconds. Each other
logger has a thread, for which rows and files are queued. A logger's failure causes one warning.
"""

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from types import ModuleType
from typing import Any

from mjfleet.config import AgentConfig
from mjfleet.errors import UserError
from mjfleet.loggers.csv_logger import CsvLogger
from mjfleet.loggers.logger import Logger, Row
from mjfleet.runs.metrics_csv import METRICS_FILE
from mjfleet.utils.console import in_a_line
from mjfleet.utils.packages import need_part

QUEUE_SIZE = 10_000  # Rows and files that may wait for a logger before newer ones are dropped.
CLOSE_SECONDS = 30.0  # How long all loggers together may take to store the rest of a run.
FAILED_SECONDS = 3.0  # The same after a failure, whose message the user waits for.

logger = logging.getLogger(__name__)


class LoggerGroup:
    """metrics.csv always, TensorBoard and W&B according to `agent.logger`, from the first row on.

    Use it as a context, which closes the loggers. `config` is the whole configuration, for W&B.
    Rows after iteration `resumed_from`, from which training continues, are dropped from the files.
    """

    def __init__(
        self, run_dir: Path, agent: AgentConfig, config: Mapping[str, Any], resumed_from: int = 0
    ) -> None:
        self._csv = CsvLogger(run_dir / METRICS_FILE, resumed_from)
        loggers: dict[str, Logger] = {}
        if "tensorboard" in agent.logger:
            try:
                part = _part("tensorboard")
                loggers["TensorBoard"] = part.TensorBoardLogger(run_dir, resumed_from)
            except UserError as error:  # It is the default, which a run does without.
                logger.warning("%s", error)
        if "wandb" in agent.logger:
            wandb = agent.wandb, agent.experiment_name, config
            loggers["W&B"] = _part("wandb").WandbLogger(run_dir, *wandb)
        self._threads = [LoggerThread(name, wrapped) for name, wrapped in loggers.items()]

    def write(self, row: Row) -> None:
        """Write a row into metrics.csv, and queue it for other loggers.

        `row["iteration"]` is its step. None: no value.
        """
        self._csv.write(row)
        self._put(lambda logger: logger.write(row))

    def video(self, path: Path, iteration: int) -> None:
        """Queue an MP4 file of the policy after an iteration. The file must not be removed."""
        self._put(lambda logger: logger.video(path, iteration))

    def checkpoint(self, path: Path, iteration: int) -> None:
        """Queue a checkpoint, which may have been removed when a logger comes to it."""
        self._put(lambda logger: logger.checkpoint(path, iteration))

    def _put(self, action: Callable[[Logger], object]) -> None:
        for thread in self._threads:
            thread.put(action)

    def __enter__(self) -> "LoggerGroup":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for a limited time until all loggers have stored everything."""
        self._csv.close()
        deadline = time.monotonic() + (FAILED_SECONDS if kind else CLOSE_SECONDS)
        begun = [thread for thread in self._threads if thread.ident]
        for thread in begun:
            thread.queue.put(lambda logger: logger.close(has_failed=kind is not None))
            thread.queue.put(None)
        for thread in begun:
            thread.end(max(0.0, deadline - time.monotonic()))


class LoggerThread(Thread):
    """Runs a logger, so that training never waits for it.

    Rows and files that do not fit into the queue are dropped and counted. A logger that fails, has
    dropped something or does not finish in time causes a warning.
    """

    def __init__(self, name: str, wrapped: Logger) -> None:
        super().__init__(name=name, daemon=True)
        self.queue: SimpleQueue[Callable[[Logger], object] | None] = SimpleQueue()
        self._logger, self._dropped, self._is_given_up = wrapped, 0, False

    def put(self, action: Callable[[Logger], object]) -> None:
        """Queue an action for the logger, unless it has failed or its queue is full."""
        if self.ident is None:
            self.start()
        if self.is_alive() and self.queue.qsize() < QUEUE_SIZE:
            self.queue.put(action)
        elif self.is_alive():
            self._dropped += 1

    def end(self, seconds: float) -> None:
        """Wait until the logger is closed, at most for `seconds`. Then give it up."""
        try:
            self.join(seconds)
        finally:  # A second signal interrupts the wait.
            if self._dropped:
                warn = "%s was too slow for %d rows or files, which it lacks"
                logger.warning(warn, self.name, self._dropped)
            if self.is_alive():
                self._is_given_up = True
                logger.warning("%s did not finish in time: %s", self.name, self._logger.abandon())

    def run(self) -> None:
        try:
            self._logger.open()
            while action := self.queue.get():
                action(self._logger)
        except Exception as error:
            if not self._is_given_up:
                why = in_a_line(error)
                logger.warning("%s failed, training continues without it: %s", self.name, why)
                self._logger.abandon()


def _part(logger: str) -> ModuleType:
    return need_part(f"mjfleet.loggers.{logger}_logger", f"--agent.logger {logger}")
