"""Reads metrics.csv: for a run that continues, for plots and for reports."""

import csv
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

METRICS_FILE = "metrics.csv"
"""Created as soon as training begins; without a header until the first iteration."""
Rows = Sequence[dict[str, str]]


def read_rows(path: Path, last: float = math.inf) -> tuple[list[str], list[dict[str, str]]]:
    """Return the columns and rows of a metrics.csv up to iteration `last`, each iteration once.

    Rows that a crash has left incomplete or garbled are skipped. If an iteration has two rows, the
    lower one counts, because it was trained later.
    """
    if not path.exists():
        return [], []
    # The text after the last line break is an incomplete row, or empty.
    head, *lines = path.read_bytes().decode(errors="replace").split("\n")[:-1] or [""]
    columns = next(csv.reader([head]), [])
    if "iteration" not in columns:
        return [], []
    rows: dict[int, dict[str, str]] = {}
    for line in lines:
        # All fields are numbers. csv.reader would join all rows after a stray quotation mark.
        fields = line.rstrip("\r").split(",")
        row = dict(zip(columns, fields, strict=False))
        is_sound = len(fields) == len(columns) and all(map(_is_number_or_empty, fields))
        if is_sound and row["iteration"].isdecimal() and int(row["iteration"]) <= last:
            rows[int(row["iteration"])] = row
    return columns, [rows[iteration] for iteration in sorted(rows)]


def columns_of(wanted: str, columns: Sequence[str]) -> list[str]:
    """Return the columns that a name means; one that ends in a slash means all that begin so."""
    return [c for c in columns if c == wanted or (wanted[-1:] == "/" and c.startswith(wanted))]


def completed_iterations(run_dir: Path) -> int:
    """Return the number of iterations in a run's metrics.csv."""
    try:
        *_, last = (run_dir / METRICS_FILE).read_text().splitlines()
    except (FileNotFoundError, ValueError):
        return 0
    number = last.partition(",")[0]
    return int(number) if number.isdecimal() else 0


def seconds_spent(rows: Rows) -> list[float]:
    """Return the seconds of training up to the end of each row's iteration, without pauses."""
    steps = [0.0, *(value(row, "total_steps") or 0.0 for row in rows)]
    each = (
        # The total may decrease where a run continued with fewer environments.
        max(0.0, now - before) / max(1.0, value(row, "global_steps_per_second") or 0.0)
        for (before, now), row in zip(pairwise(steps), rows, strict=True)
    )
    return list(accumulate(each))


def value(row: Mapping[str, str], column: str) -> float | None:
    """Return a finite number of a row, or None without one."""
    number = float(row.get(column) or math.nan)
    return number if math.isfinite(number) else None


def _is_number_or_empty(field: str) -> bool:
    try:
        float(field or 0)
    except ValueError:
        return False
    return True
