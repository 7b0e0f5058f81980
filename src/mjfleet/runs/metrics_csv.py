"""Rows of metrics.csv, as a run that goes on, plots and reports read them."""

import csv
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

Rows = Sequence[dict[str, str]]


def read_rows(path: Path, last: float = math.inf) -> tuple[list[str], list[dict[str, str]]]:
    """Columns and rows of a metrics.csv up to iteration `last`, each iteration once.

    A crash may have left half a row or bytes of something else: such rows are passed over. Of two
    rows for an iteration the one further down counts, as it was trained later.
    """
    if not path.exists():
        return [], []
    # What follows the last end of line is half a row, or nothing.
    head, *lines = path.read_bytes().decode(errors="replace").split("\n")[:-1] or [""]
    columns = next(csv.reader([head]), [])
    if "iteration" not in columns:
        return [], []
    rows: dict[int, dict[str, str]] = {}
    for line in lines:
        # Rows are numbers: to csv.reader a stray quotation mark would join all that follow.
        fields = line.rstrip("\r").split(",")
        if len(fields) == len(columns) and all(map(_is_number_or_empty, fields)):
            row = dict(zip(columns, fields, strict=True))
            if row["iteration"].isdecimal() and int(row["iteration"]) <= last:
                rows[int(row["iteration"])] = row
    return columns, [rows[iteration] for iteration in sorted(rows)]


def seconds_spent(rows: Rows) -> list[float]:
    """Seconds of training up to the end of each row's iteration, pauses left out."""
    steps = [0.0, *(value(row, "total_steps") or 0.0 for row in rows)]
    each = (
        # A run that went on elsewhere with fewer steps would go back in time.
        max(0.0, now - before) / max(1.0, value(row, "global_steps_per_second") or 0.0)
        for (before, now), row in zip(pairwise(steps), rows, strict=True)
    )
    return list(accumulate(each))


def value(row: Mapping[str, str], column: str) -> float | None:
    """A number of a row; None where there is none, or none that is finite."""
    number = float(row.get(column) or math.nan)
    return number if math.isfinite(number) else None


def _is_number_or_empty(field: str) -> bool:
    if field:
        try:
            float(field)
        except ValueError:
            return False
    return True
