"""Writes metrics.csv: a header, then one row per iteration. Runs in rank 0."""

import csv
import io
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mjfleet.loggers.logger import Row, RowFileLogger
from mjfleet.runs.metrics_csv import read_rows

logger = logging.getLogger(__name__)


class CsvLogger(RowFileLogger):
    """Creates the file at once, with a header from the first row on.

    When a run resumes, rows up to iteration `resumed_from` are kept. Later ones are dropped, since
    they are trained again. A new column is appended, and is empty in earlier rows.
    """

    def __init__(self, path: Path, resumed_from: int) -> None:
        super().__init__(path)
        self._resumed_from = resumed_from
        self._columns: list[str] = []

    def _first_content(self) -> bytes:
        self._columns, rows = read_rows(self._path, self._resumed_from)
        # A run that began from another one's checkpoint has no rows of its iterations.
        first = int(rows[0]["iteration"]) if rows else 1
        lost = self._resumed_from + 1 - first - len(rows)
        if lost > 0 and self._path.exists() and self._path.stat().st_size:
            logger.warning("%s lacks the rows of %d iterations, which were lost", self._path, lost)
        return _csv_text(self._columns, rows, header=bool(self._columns))

    def _encode(self, row: Row) -> bytes:
        if new := [name for name in row if name not in self._columns]:
            columns, rows = read_rows(self._path, math.inf)
            self._replace(_csv_text([*columns, *new], rows))
            self._columns = [*columns, *new]
        return _csv_text(self._columns, [row], header=False)


def _csv_text(
    columns: Sequence[str], rows: Iterable[Mapping[str, Any]], header: bool = True
) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns)
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
