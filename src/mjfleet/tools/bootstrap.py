"""Means over runs that differ in their seed alone, and how sure these are. Imports no torch."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

RESAMPLES = 2000
PERCENTILES = (2.5, 97.5)
INTERVAL = "the 95% bootstrap interval of that mean"
Line = tuple[Sequence[float], Sequence[float]]  # Of a run: x, which never decreases, and y.


@dataclass(frozen=True)
class Estimate:
    """The mean of a number over several runs, and the 95% bootstrap interval of that mean."""

    mean: float
    low: float | None  # None: there is one run.
    high: float | None
    runs: int  # That have the number.

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate | None":
        """Return the estimate from a value of each run; None if there are no values."""
        import numpy as np

        if not values:
            return None
        low, high = bootstrap_interval(np.array(values)) if len(values) > 1 else (None, None)
        bounds = [None if bound is None else float(bound) for bound in (low, high)]
        return cls(sum(values) / len(values), bounds[0], bounds[1], len(values))


def bootstrap_interval(values: "np.ndarray") -> tuple[Any, Any]:
    """Return the bounds, low and high, of a 95% interval of the mean over the first axis.

    Their shape is that of `values` without it: `(runs, ...)`. The means of `RESAMPLES` draws of as
    many runs, with replacement, lie between them: the percentile bootstrap of Efron and Tibshirani,
    An Introduction to the Bootstrap, chapter 13. The same values always give the same interval.
    """
    import numpy as np

    runs = len(values)
    drawn = np.random.default_rng(0).multinomial(runs, [1 / runs] * runs, size=RESAMPLES)
    low, high = np.percentile(np.tensordot(drawn / runs, values, axes=1), PERCENTILES, axis=0)
    return low, high


def common_x(lines: Iterable[Sequence[float]], points: int) -> list[float]:
    """Return evenly spaced places from the first x of any line to the last, which lines share."""
    import numpy as np

    ends = [(x[0], x[-1]) for x in lines]
    return np.linspace(min(a for a, _ in ends), max(b for _, b in ends), points).tolist()


def mean_curve(lines: Sequence[Line], x: Sequence[float]) -> tuple[list[float], ...]:
    """Return the interval's low, the mean and the high of at least one run at each of `x`.

    They are of the runs that have values before and after it; NaN where none has. A run that ended
    early thus counts as far as it got.
    """
    import numpy as np

    nan = math.nan
    values = np.stack([np.interp(x, *line, left=nan, right=nan) for line in lines])
    found = np.full((3, len(x)), nan)
    is_known = ~np.isnan(values)
    for some in np.unique(is_known, axis=1).T:
        here = (is_known == some[:, None]).all(axis=0)
        if some.any():
            known = values[some][:, here]
            low, high = bootstrap_interval(known)
            found[:, here] = low, known.mean(axis=0), high
    return found[0].tolist(), found[1].tolist(), found[2].tolist()
