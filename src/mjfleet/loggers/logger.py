"""The contract of a logger, and what those have in common that write a file. Runs in rank 0."""

import logging
from abc import ABC, abstractmethod
from collections import deque
from pathlib import Path

from mjfleet.utils.atomic_write import extend, write_atomically

Row = dict[str, float | int | None]

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
        """Store a checkpoint, which may have been removed by then."""

    def close(self, has_failed: bool) -> None:
        """Store the rest of a run, which may have failed. Called once, last."""

    def abandon(self) -> str:
        """Give up without waiting, from any thread; return what happens to the rest."""
        return "its last rows are lost"


class RowFileLogger(Logger, ABC):
    """Writes rows into a file of the run directory, each completely or not at all.

    A row that does not fit on a full disk waits in memory, and is tried again with the next row.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._length: int | None = None  # Bytes of complete rows. None: there is no file yet.
        self._waiting: deque[Row] = deque()
        self._has_warned = False

    def open(self) -> None:
        self._save()

    def write(self, row: Row) -> None:
        self._waiting.append(row)
        self._save()

    def close(self, has_failed: bool) -> None:
        self._save()

    def _save(self) -> None:
        try:
            if self._length is None:
                self._replace(self._first_content())
            while self._waiting:
                data = self._encode(self._waiting[0])
                assert self._length is not None
                self._length = extend(self._path, self._length, data)
                self._waiting.popleft()
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                plan = "not written; training continues, and each row tries again"
                logger.warning("%s: %s: %s", self._path.name, plan, error)

    def _replace(self, content: bytes) -> None:
        write_atomically(self._path, lambda file: file.write(content))
        self._length = len(content)

    @abstractmethod
    def _first_content(self) -> bytes:
        """Return the file's content before the first row of this part of the run."""

    @abstractmethod
    def _encode(self, row: Row) -> bytes:
        """Return what a row appends to the file."""
