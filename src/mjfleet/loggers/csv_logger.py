"""Writes metrics.csv: a header, then one row per iteration. Runs in rank 0."""

import csv
import errno
import io
import logging
import math
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from mjfleet.loggers.logger import Row
from mjfleet.runs.metrics_csv import read_rows
from mjfleet.utils.atomic_write import write_atomically

logger = logging.getLogger(__name__)


class CsvLogger:
    """Has each row in the file, whole, when `write` returns.

    When a run resumes, rows up to iteration `resumed_from` are kept. Later ones are dropped, since
    they are trained again. A new column is appended, and is empty in earlier rows. A row that does
    not fit on a full disk waits in memory, and is tried again with the next row.
    """

    def __init__(self, path: Path, resumed_from: int) -> None:
        self._path, self._resumed_from = path, resumed_from
        self._columns: list[str] = []
        self._file: io.FileIO | None = None  # None: it still has the rows of earlier attempts.
        self._waiting: list[Row] = []
        self._has_warned = False

    def write(self, row: Row) -> None:
        """Append a row, after those that wait."""
        self._waiting.append(row)
        self._save()

    def close(self) -> None:
        """Append the rows that wait, and close the file."""
        self._save()
        if self._file:
            self._file.close()

    def _save(self) -> None:
        try:
            while self._waiting:
                row = self._waiting[0]
                if self._file is None or not row.keys() <= {*self._columns}:
                    self._file = self._with_columns(row)
                _append(self._file, _text(self._columns, [row]))
                del self._waiting[0]
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                plan = "not written; training continues, and each row tries again"
                logger.warning("%s: %s: %s", self._path.name, plan, error)

    def _with_columns(self, names: Collection[str]) -> io.FileIO:
        """Replace the file by one that has these columns too; return it, open at its end."""
        columns, rows = read_rows(self._path, math.inf if self._file else self._resumed_from)
        columns = list(dict.fromkeys((*columns, *names)))
        content = _text(columns, [dict(zip(columns, columns, strict=True)), *rows])
        write_atomically(self._path, lambda file: file.write(content))
        file = self._path.open("ab", buffering=0)
        if self._file:
            self._file.close()
        self._columns = columns
        return file


def _append(file: io.FileIO, data: bytes) -> None:
    """Append data; on a failure, such as a full disk, the file stays as it was."""
    length = file.seek(0, os.SEEK_END)
    try:
        if file.write(data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        file.truncate(length)
        raise


def _text(columns: Collection[str], rows: Iterable[Mapping[str, Any]]) -> bytes:
    text = io.StringIO()
    csv.DictWriter(text, columns).writerows(rows)
    return text.getvalue().encode()
