"""Conditions that metrics are to reach, such as `task/velocity_error < 0.27`."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

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


def window_means(metric: str, values: np.ndarray) -> np.ndarray:
    """Return the means of a metric over WINDOW iterations, from the first whole window on.

    They are NaN where an iteration has no value. An evaluation is a mean over whole episodes, and
    few iterations have one: that of a window's last iteration counts alone.
    """
    if len(values) < WINDOW:
        return np.empty(0)
    if metric.startswith(EVALUATION):
        return values[WINDOW - 1 :]
    return np.lib.stride_tricks.sliding_window_view(values, WINDOW).mean(axis=1)


def check_columns(thresholds: Iterable[Threshold], columns: Sequence[str]) -> None:
    """Raise UserError where a metric is none of the columns."""
    for threshold in thresholds:
        if threshold.metric not in columns:
            known = ", ".join(columns)
            raise UserError(f"--until '{threshold}': there is no such metric; there are {known}.")


def reached(thresholds: Iterable[Threshold], columns: Mapping[str, np.ndarray]) -> int | None:
    """Return the first iteration, counted from 0, at whose end all thresholds are reached.

    That is where all hold for the means over the last `WINDOW` iterations; None: nowhere.
    """
    held = []
    for threshold in thresholds:
        means = window_means(threshold.metric, columns.get(threshold.metric, np.empty(0)))
        held.append(means < threshold.value if threshold.sign == "<" else means > threshold.value)
    if not all(map(len, held)):
        return None
    ends = np.flatnonzero(np.all(held, axis=0))
    return int(ends[0]) + WINDOW - 1 if len(ends) else None
