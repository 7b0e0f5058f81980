"""Reads metrics.csv: for a run that continues, for plots, lists and reports."""

import csv
import math
import os
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

from mjfleet.utils.safe_read import open_regular

METRICS_FILE = "metrics.csv"
"""Created with the first iteration."""
METRICS_BYTES = 2**30
TAIL_BYTES = 2**17  # With the last row.
MAX_DIGITS = 12  # Digits of an iteration.
TOO_LARGE = 1e30  # Numbers from which on nothing is drawn.
Rows = Sequence[dict[str, str]]


def read_rows(
    path: Path, last: float = math.inf, only: Collection[str] | None = None
) -> tuple[list[str], list[dict[str, str]]]:
    """Return the columns and rows of a metrics.csv up to iteration `last`, each iteration once.

    Rows that a crash has left incomplete or garbled are skipped. If an iteration has two rows, the
    lower one counts, because it was trained later. Rows have the columns `only`, or all.

    Raises:
        OSError: there is a file, which cannot be read.
    """
    try:
        file = open_regular(path, METRICS_BYTES)
    except FileNotFoundError:
        return [], []
    rows: dict[int, dict[str, str]] = {}
    with file:
        whole = (line for line in file if line.endswith(b"\n"))
        lines = (line.decode(errors="replace").rstrip("\r\n") for line in whole)
        try:
            columns = next(csv.reader([next(lines, "")]), [])
        except csv.Error:
            return [], []
        if "iteration" not in columns or len(set(columns)) < len(columns):
            return [], []
        first = columns.index("iteration")
        places = {n: i for i, n in enumerate(columns) if only is None or n in only}
        for line in lines:
            # All fields are numbers. csv.reader would join all rows after a stray quotation mark.
            fields = line.split(",")
            if len(fields) == len(columns) and (number := iteration_in(fields[first])):
                row = {name: fields[place] for name, place in places.items()}
                if number <= last and all(map(_is_number_or_empty, row.values())):
                    rows[number] = row
    return columns, [rows[number] for number in sorted(rows)]


def iteration_in(field: str | bytes) -> int | None:
    """Return the number of an iteration, or None if a field is none."""
    is_one = field.isdigit() and field.isascii() and len(field) <= MAX_DIGITS
    return int(field) if is_one else None


def columns_of(wanted: str, columns: Sequence[str]) -> list[str]:
    """Return the columns that a name means; one that ends in a slash means all that begin so."""
    return [c for c in columns if c == wanted or (wanted[-1:] == "/" and c.startswith(wanted))]


def completed_iterations(run_dir: Path) -> int:
    """Return the iterations in a run's metrics.csv; OSError if a file is there but unreadable."""
    try:
        with open_regular(run_dir / METRICS_FILE, METRICS_BYTES) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            *_, last, _ = file.read().split(b"\n")
    except (FileNotFoundError, ValueError):
        return 0
    return iteration_in(last.partition(b",")[0]) or 0


def seconds_spent(rows: Rows) -> list[float]:
    """Return the seconds of training up to the end of each row's iteration, without pauses.

    There is at least one row. What another run has trained, from which this one began, is left out.
    """
    steps = [value(row, "total_steps") or 0.0 for row in rows]
    steps.insert(0, steps[0] * (1.0 - 1.0 / float(rows[0]["iteration"])))
    seconds = (
        # The total may decrease where a run continued with fewer environments.
        max(0.0, now - before) / max(1.0, value(row, "global_steps_per_second") or 0.0)
        for (before, now), row in zip(pairwise(steps), rows, strict=True)
    )
    return list(accumulate(seconds))


def value(row: Mapping[str, str], column: str) -> float | None:
    """Return a finite number of a row, or None without one, or with one too large to draw."""
    number = float(row.get(column) or math.nan)
    return number if abs(number) < TOO_LARGE else None


def _is_number_or_empty(field: str) -> bool:
    try:
        float(field or 0)
    except ValueError:
        return False
    return True
