"""Curves of a run, or of runs that differ only in their seed, for pages. Imports nothing heavy."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from mjfleet.runs.bootstrap import Line, mean_curve
from mjfleet.runs.logged_run import LoggedRun
from mjfleet.tools.report.report_contents import curves_of, rounded

POINTS = 300  # Of a curve.
STEPS = "million steps"
Curves = Mapping[str, Any]
"""An entry of `write_page`: `along`, `columns`, `low` and `high`."""


def curves_of_group(runs: Sequence[LoggedRun], columns: Sequence[str]) -> Curves:
    """Return the curves of a run, or the means over several and their intervals."""
    each = -(-max(len(run.rows) for run in runs) // POINTS)
    drawn = [curves_of(columns, run.rows, each) for run in runs]
    if len(drawn) == 1:
        return {name: drawn[0][name] for name in ("along", "columns")}
    x = sorted({at for curves in drawn for at in curves["along"][STEPS]})

    def mean(part: str, name: str) -> tuple[list[float], ...]:
        lines = [points_of(each["along"][STEPS], each[part].get(name, [])) for each in drawn]
        return mean_curve([line for line in lines if line[0]], x)

    found: dict[str, dict[str, list[float | None]]] = {"low": {}, "columns": {}, "high": {}}
    for column in dict.fromkeys(name for curves in drawn for name in curves["columns"]):
        for curve, values in zip(found.values(), mean("columns", column), strict=True):
            curve[column] = _plain(values)
    # Where a slow run ends, the mean of the others' minutes may be less.
    along = {n: _plain(accumulate(mean("along", n)[1], max)) for n in drawn[0]["along"]}
    return {**found, "along": along}


def points_of(x: Sequence[float], values: Sequence[float | None]) -> Line:
    """Return the points that have a value."""
    known = [(at, v) for at, v in zip(x, values, strict=False) if v is not None]
    return [at for at, _ in known], [v for _, v in known]


def _plain(values: Iterable[float]) -> list[float | None]:
    """Return numbers as JSON has them: None for one that is not there."""
    return [None if math.isnan(v) else rounded(v) for v in values]
