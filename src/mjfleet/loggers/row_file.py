"""A file in the run directory that takes each row completely or not at all. Runs in rank 0.

A row that does not fit on a full disk waits in memory, and is tried again with the next row.
"""

import logging
from abc import ABC, abstractmethod
from collections import deque
from pathlib import Path

from mjfleet.loggers.logger import Logger, Row
from mjfleet.utils.atomic_write import extend, write_atomically

logger = logging.getLogger(__name__)


class RowFileLogger(Logger, ABC):
    """Writes rows into one file. It ignores checkpoints, which the run directory holds already."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Number of bytes that are complete rows. None: the file has not been created.
        self._length: int | None = None
        self._waiting: deque[Row] = deque()
        self._has_warned = False

    def open(self) -> None:
        """Create the file."""
        self._save()

    def write(self, row: Row) -> None:
        """Store a row, after all rows that wait."""
        self._waiting.append(row)
        self._save()

    def close(self, has_failed: bool = False) -> None:
        """Try the rows that wait once more."""
        del has_failed
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
                plan = "not written, training goes on and tries again with each row"
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
