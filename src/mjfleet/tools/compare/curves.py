"""The curves of what is compared, for the page and for the terminal. Imports nothing heavy."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from mjfleet.loggers.live_terminal import SPARKS
from mjfleet.runs.bootstrap import Line, common_x, mean_curve
from mjfleet.runs.logged_run import LoggedRun
from mjfleet.tools.compare.comparison import Table
from mjfleet.tools.report.page_file import number
from mjfleet.tools.report.report_contents import curves_of, headings_of

POINTS = 300  # Of a curve.
BARS = 40  # Of a curve on the terminal.
STEPS, RETURN = "million steps", "mean_return"
Curves = Mapping[str, Any]
"""An entry of `write_page`: `along`, `columns`, `low` and `high`."""


def curves_of_group(runs: Sequence[LoggedRun], columns: Sequence[str]) -> Curves:
    """Return the curves of a run, or the means over several and their intervals."""
    drawn = [curves_of(columns, run.rows, POINTS) for run in runs]
    if len(drawn) == 1:
        return {name: drawn[0][name] for name in ("along", "columns")}
    x = common_x([curves["along"][STEPS] for curves in drawn], POINTS)

    def mean(part: str, name: str) -> tuple[list[float], ...]:
        lines = [_line(each["along"][STEPS], each[part].get(name, [])) for each in drawn]
        return mean_curve([line for line in lines if line[0]], x)

    found: dict[str, dict[str, list[float | None]]] = {"low": {}, "columns": {}, "high": {}}
    for column in dict.fromkeys(name for curves in drawn for name in curves["columns"]):
        for curve, values in zip(found.values(), mean("columns", column), strict=True):
            curve[column] = _plain(values)
    # Where a slow run ends, the mean of the others' minutes may be less.
    along = {n: _plain(accumulate(mean("along", n)[1], max)) for n in drawn[0]["along"]}
    return {**found, "along": along}


def columns_by_heading(entries: Sequence[Curves]) -> dict[str, list[str]]:
    """Return the columns that any of the entries has, below the headings of a report."""
    found: dict[str, list[str]] = {}
    known = list(dict.fromkeys(column for curves in entries for column in curves["columns"]))
    for column, heading in headings_of(known).items():
        found.setdefault(heading, []).append(column)
    return found


def sparklines(names: Sequence[str], entries: Sequence[Curves]) -> list[Table]:
    """Return a table of returns as rows of bars, on the same axes; none if there are none."""
    lines = [_line(each["along"][STEPS], each["columns"].get(RETURN, [])) for each in entries]
    known = [v for _, values in lines for v in values]
    if not known:
        return []
    low, high = min(known), max(known)
    x = common_x([each["along"][STEPS] for each in entries], BARS)

    def bars(line: Line) -> str:
        values = mean_curve([line], x)[1] if line[0] else [math.nan] * BARS
        shares = ((v - low) / ((high - low) or 1) for v in values)
        return "".join(" " if math.isnan(share) else SPARKS[int(7.999 * share)] for share in shares)

    title = f"{RETURN} from {number(low)} to {number(high)}"
    rows = [(name, [bars(line)]) for name, line in zip(names, lines, strict=True)]
    return [Table(title, [f"over {number(x[-1])} {STEPS}"], rows)]


def _line(x: Sequence[float], values: Sequence[float | None]) -> Line:
    """Return the points that have a value."""
    known = [(at, v) for at, v in zip(x, values, strict=False) if v is not None]
    return [at for at, _ in known], [v for _, v in known]


def _plain(values: Iterable[float]) -> list[float | None]:
    """Return numbers as JSON has them: None for one that is not there."""
    return [None if math.isnan(v) else float(f"{v:.5g}") for v in values]
