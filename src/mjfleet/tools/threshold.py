"""Conditions that metrics are to reach, such as `task/velocity_error < 0.27`. In the launcher."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any

from mjfleet.config.validation import Rule
from mjfleet.errors import UserError

WINDOW = 10  # Iterations whose mean has to hold: a single one may do so by chance.
EVALUATION = "eval/"  # What the columns of evaluations begin with.
CONDITION = re.compile(r"\s*(\S+?)\s*([<>])\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*")
Conditions = Annotated[
    tuple[str, ...],
    Rule(
        lambda texts: all(map(CONDITION.fullmatch, texts)),
        "conditions such as `task/velocity_error < 0.27`: a column of metrics.csv, < or >, and a "
        "number, all in quotation marks",
    ),
]


@dataclass(frozen=True)
class Threshold:
    """A number, and on which side of it a metric is to be."""

    metric: str  # A column of metrics.csv.
    sign: str  # Less or greater, < or >.
    value: float

    @classmethod
    def parse(cls, text: str) -> "Threshold":
        """Parse a text for which the rule of `Conditions` holds."""
        found = CONDITION.fullmatch(text)
        assert found
        metric, sign, value = found.groups()
        return cls(metric, sign, float(value))

    def __str__(self) -> str:
        return f"{self.metric} {self.sign} {self.value:g}"

    def holds(self, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether the mean over these iterations is beyond the number."""
        mean = window_mean(self.metric, rows)
        return mean < self.value if self.sign == "<" else mean > self.value


def window_mean(metric: str, rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the mean of a metric over iterations; NaN where it has no value in one of them.

    An evaluation is a mean over whole episodes, and few iterations have one: that of the last
    iteration counts alone.
    """
    rows = rows[-1:] if metric.startswith(EVALUATION) else rows
    values = (row.get(metric, "") for row in rows)
    return fmean(math.nan if value == "" else float(value) for value in values)


def check_columns(thresholds: Sequence[Threshold], columns: Sequence[str]) -> None:
    """Raise UserError where a metric is none of the columns."""
    for threshold in thresholds:
        if threshold.metric not in columns:
            known = ", ".join(columns)
            raise UserError(f"--until '{threshold}': there is no such metric; there are {known}.")


def reached(thresholds: Sequence[Threshold], rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the first iteration, counted from 0, at whose end all thresholds are reached.

    That is where all hold for the means over the last `WINDOW` iterations; None: nowhere.
    """
    for end in range(WINDOW, len(rows) + 1):
        if all(threshold.holds(rows[end - WINDOW : end]) for threshold in thresholds):
            return end - 1
    return None
