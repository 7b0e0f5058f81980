"""Means over runs that differ in their seed alone, and how sure these are. Imports no torch."""

from collections.abc import Sequence
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


def mean_curve(lines: Sequence[Line], points: int = 500) -> tuple[list[float], ...]:
    """Return x where all runs have values, and there the interval's low, the mean and the high."""
    import numpy as np

    first, last = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
    common = np.linspace(first, max(first, last), points)
    values = np.stack([np.interp(common, x, y) for x, y in lines])
    low, high = bootstrap_interval(values)
    return common.tolist(), low.tolist(), values.mean(axis=0).tolist(), high.tolist()
