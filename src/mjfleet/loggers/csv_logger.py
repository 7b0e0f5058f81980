"""Writes metrics.csv: a header, then one row per iteration. Runs in rank 0."""

import csv
import io
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mjfleet.loggers.logger import Logger, Row
from mjfleet.runs.metrics_csv import read_rows
from mjfleet.utils.atomic_write import extend, write_atomically

logger = logging.getLogger(__name__)


class CsvLogger(Logger):
    """Creates the file at once; each row is there completely or not at all.

    When a run resumes, rows up to iteration `resumed_from` are kept. Later ones are dropped, since
    they are trained again. A new column is appended, and is empty in earlier rows. A row that does
    not fit on a full disk waits in memory, and is tried again with the next row.
    """

    def __init__(self, path: Path, resumed_from: int) -> None:
        self._path, self._resumed_from = path, resumed_from
        self._columns: list[str] = []
        self._length: int | None = None  # Bytes of complete rows. None: the file is not ours yet.
        self._waiting: list[Row] = []
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
                self._replace(*read_rows(self._path, self._resumed_from))
            while self._waiting:
                row = self._waiting[0]
                if new := [name for name in row if name not in self._columns]:
                    columns, rows = read_rows(self._path)
                    self._replace([*columns, *new], rows)
                self._length = extend(self._path, self._length or 0, _text(self._columns, [row]))
                del self._waiting[0]
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                plan = "not written; training continues, and each row tries again"
                logger.warning("%s: %s: %s", self._path.name, plan, error)

    def _replace(self, columns: list[str], rows: Iterable[Mapping[str, Any]]) -> None:
        header = [dict(zip(columns, columns, strict=True))] if columns else []
        content = _text(columns, [*header, *rows])
        write_atomically(self._path, lambda file: file.write(content))
        self._columns, self._length = columns, len(content)


def _text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> bytes:
    text = io.StringIO()
    csv.DictWriter(text, columns).writerows(rows)
    return text.getvalue().encode()
