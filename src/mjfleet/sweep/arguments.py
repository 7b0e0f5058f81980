"""The flags of `mjfleet sweep`. Imports nothing heavy, and no Optuna."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from mjfleet.config.validation import Checked, Count, PathText


@dataclass(frozen=True, kw_only=True)
class SweepArguments(Checked):
    """Find good settings of a task by many short runs."""

    try_: Annotated[tuple[str, ...], tyro.conf.arg(name="try", metavar="NAME=VALUES ...")] = ()
    """What trials differ in: the name of a flag of `train`, and a range `a..b`, `a..b:log` or
    `a..b:STEP`, or a list `a,b,c`."""
    trials: Count = 64
    """Number of trials, on all machines together. A grid has at most its points."""
    metric: str = "eval/return"
    """Column of metrics.csv to maximise; `NAME:min` minimises it."""
    sampler: Literal["tpe", "random", "cmaes", "grid"] = "tpe"
    """How values are chosen: by a model of those that were good (`tpe`), at `random`, by an
    evolution strategy (`cmaes`), or all points of a `grid` of lists."""
    pruner: Literal["halving", "hyperband", "none"] = "halving"
    """How trials that do worse than others are stopped early: by successive `halving`, by
    `hyperband`, or `none` are."""
    storage: PathText = None
    """Where trials are recorded: a database's URL, such as `postgresql://user@host/sweeps`, or a
    file. Several machines with the same one share a sweep. `None`: a file in the sweep's folder."""
    resume: PathText = None
    """Sweep to continue: its folder, a part of its name, or `latest`. It has its flags; --trials,
    --storage and flags for devices may be given anew."""
