"""Sinks that are files of the run directory: metrics.csv and TensorBoard's event files.

Rank 0 writes them. They continue what a resumed run's earlier parts left, and they outlast a full
disk: a row that does not fit waits in memory and is tried again with the next one.
"""

import csv
import io
import logging
import math
import os
import socket
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mjfleet.loggers.logger import Row
from mjfleet.runs.metrics_csv import read_rows
from mjfleet.utils.atomic_write import extend, write_atomically

logger = logging.getLogger(__name__)


class _FileSink(ABC):
    """A file that takes each row whole or not at all, and nothing else."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._length: int | None = None  # Bytes that are sound; None before the file was started.
        self._waiting: deque[Row] = deque()
        self._warned = False

    def open(self) -> None:
        """Start the file."""
        self._save()

    def write(self, row: Row) -> None:
        """Store a row, and before it all those that wait."""
        self._waiting.append(row)
        self._save()

    def video(self, path: Path, iteration: int) -> None:
        """Store nothing: TensorBoard shows no MP4."""
        del path, iteration

    def checkpoint(self, path: Path, iteration: int) -> None:
        """Store nothing: it is in the run directory already."""
        del path, iteration

    def close(self, has_failed: bool = False) -> None:
        """Try those that wait once more."""
        del has_failed
        self._save()

    def abandon(self) -> str:
        """Leave what waits; returns what that means."""
        return "its last rows are lost"

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
            if not self._warned:
                self._warned = True
                logger.warning(
                    "%s: not written, training goes on and tries again with each row: %s",
                    self._path.name,
                    error,
                )

    def _replace(self, content: bytes) -> None:
        write_atomically(self._path, lambda file: file.write(content))
        self._length = len(content)

    @abstractmethod
    def _first_content(self) -> bytes:
        """What the file holds before the first row of this part of the run."""

    @abstractmethod
    def _encode(self, row: Row) -> bytes:
        """What a row adds to the file."""


class CsvSink(_FileSink):
    """metrics.csv: a header, then a row per iteration. There, without a header, from the start.

    Rows of a resumed run's file stay up to iteration `resumed_from`; those after it are trained
    again, and dropped. A column that is new is added at the end, and empty in earlier rows.
    """

    def __init__(self, path: Path, resumed_from: int) -> None:
        super().__init__(path)
        self._resumed_from = resumed_from
        self._columns: list[str] = []

    def _first_content(self) -> bytes:
        self._columns, rows = read_rows(self._path, self._resumed_from)
        return _csv_text(self._columns, rows)

    def _encode(self, row: Row) -> bytes:
        if new := [name for name in row if name not in self._columns]:
            columns, rows = read_rows(self._path, math.inf)
            columns += new
            self._replace(_csv_text(columns, rows))
            self._columns = columns
        return _csv_text(self._columns, [row], header=False)


def _csv_text(
    columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, header: bool = True
) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns)
    if header and columns:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


class TensorBoardSink(_FileSink):
    """An event file in the run directory, one for each part of a run.

    torch's SummaryWriter is not used: its thread dies on a full disk with a traceback on the
    terminal, and leaves half a record, behind which nothing can be read any more.
    """

    def __init__(self, run_dir: Path, resumed_from: int) -> None:
        # TensorBoard reads files in the order of their names, which must be that of their making.
        moment = f"{time.time():.6f}"
        super().__init__(
            run_dir / f"events.out.tfevents.{moment}.{socket.gethostname()}.{os.getpid()}"
        )
        self._resumed_from = resumed_from

    def _first_content(self) -> bytes:
        # The start of a session at a step makes TensorBoard forget what earlier files say of this
        # step and later ones.
        first = {"step": self._resumed_from + 1, "session_log": {"status": "START"}}
        return _record(file_version="brain.Event:2") + _record(**first)

    def _encode(self, row: Row) -> bytes:
        values = [
            {"tag": name, "simple_value": value}
            for name, value in row.items()
            if value is not None and name != "iteration"
        ]
        return _record(step=row["iteration"], summary={"value": values})


def _record(**event: Any) -> bytes:
    """One record of an event file: an event with its time, length and checksums."""
    from tensorboard.compat.proto.event_pb2 import (
        Event,  # pyright: ignore[reportAttributeAccessIssue]
    )
    from tensorboard.summary.writer.record_writer import RecordWriter

    record = io.BytesIO()
    RecordWriter(record).write(Event(wall_time=time.time(), **event).SerializeToString())
    return record.getvalue()
