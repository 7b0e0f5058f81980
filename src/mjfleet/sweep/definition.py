"""What a sweep is, by its flags: all that its machines agree on. Runs in the launcher."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

from optuna.distributions import CategoricalDistribution
from optuna.pruners import BasePruner, HyperbandPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, CmaEsSampler, RandomSampler, TPESampler

from mjfleet.cli.flags import peek
from mjfleet.config import TrainConfig
from mjfleet.config.train_config import decides_learning
from mjfleet.errors import UserError
from mjfleet.registry import FoundTask
from mjfleet.runs.config_yaml import differences
from mjfleet.sweep.arguments import SweepArguments
from mjfleet.sweep.space import Space, defaults_in, read_space

SURVIVORS = 4
"""Of so many trials that come as far, successive halving goes on with the best (Li et al. 2020,
arXiv:1810.05934)."""
LOOKS = SURVIVORS**2
"""Evaluations of a trial, unless flags say otherwise. Trials are compared from the first on: after
1/16 and 1/4 of their length."""
COMPARED = {"agent.max_iterations", "total_steps", "eval_interval", "eval_envs"}
"""What has to be equal for results to be compared, besides what decides what is learned."""


@dataclass(frozen=True, kw_only=True)
class Definition:
    """What a sweep is."""

    task: str
    space: Space
    typed: dict[str, str]  # The values of each field, as they are typed.
    metric: str  # A column of metrics.csv.
    is_greater_better: bool
    sampler: BaseSampler
    pruner: BasePruner
    most: int  # How many trials there are to be.
    along: str  # The column by which the pruner compares trials: iteration or total_steps.
    budget: int  # How far a trial trains, by that column.
    interval: int  # Iterations whose mean is one value of the metric.
    defaults: dict[str, Any]  # The configuration's own values; {} if they are not in the space.
    is_grid: bool
    agreed: dict[str, Any]  # What has to be the same on all machines.

    def given(self, place: int) -> dict[str, Any]:
        """Return the values that no sampler chooses for a trial: the defaults, or a grid's."""
        if self.is_grid:
            points = product(*(as_list(one).choices for one in self.space.values()))
            return dict(zip(self.space, next(islice(points, place, None)), strict=True))
        return self.defaults if place == 0 else {}


def define(wanted: SweepArguments, found: FoundTask, config: TrainConfig) -> Definition:
    """Return what the flags of a sweep say.

    Raises:
        UserError: a value is not allowed.
    """
    space, typed = read_space(wanted.try_, wanted.space, config, found.name)
    metric, _, way = wanted.metric.partition(":")
    if way not in ("", "max", "min") or not metric:
        raise UserError(f"--metric {wanted.metric}: it must be NAME, NAME:max or NAME:min.")
    is_grid, most = wanted.sampler == "grid", wanted.trials
    if is_grid:
        most = min(most, math.prod(len(as_list(one).choices) for one in space.values()))
    budget = config.total_steps or config.agent.max_iterations
    interval = config.eval_interval or interval_of(config)
    first = max(1, budget // (LOOKS + 1))  # The first evaluation comes shortly after.
    compared = {
        name: ours
        for name, (ours, _) in differences(config, found.defaults()).items()
        if name in COMPARED or decides_learning(name)
    }
    samplers = {"tpe": TPESampler, "cmaes": CmaEsSampler}
    pruners = {
        "halving": lambda: SuccessiveHalvingPruner(first, reduction_factor=SURVIVORS),
        "hyperband": lambda: HyperbandPruner(first, budget, reduction_factor=SURVIVORS),
    }
    return Definition(
        task=found.name,
        space=space,
        typed=typed,
        metric=metric,
        is_greater_better=way != "min",
        sampler=samplers.get(wanted.sampler, RandomSampler)(),
        pruner=pruners.get(wanted.pruner, NopPruner)(),
        most=most,
        along="total_steps" if config.total_steps else "iteration",
        budget=budget,
        interval=interval,
        defaults=defaults_in(space, config),
        is_grid=is_grid,
        agreed={"task": found.name, "metric": wanted.metric, "sampler": wanted.sampler,
                "pruner": wanted.pruner, **{f"try {n}": v for n, v in typed.items()}, **compared},
    )  # fmt: skip


def as_list(one: object) -> CategoricalDistribution:
    """Return the list of values that a grid has of a field.

    Raises:
        UserError: it is a range.
    """
    if not isinstance(one, CategoricalDistribution):
        raise UserError("--sampler grid: --try must have lists of values such as a,b, not ranges.")
    return one


def with_looks(config: TrainConfig, flags: Sequence[str], metric: str) -> TrainConfig:
    """Return the configuration with what trials need besides, where no flag says otherwise.

    These are evaluations, if they are the metric, and checkpoints that a killed trial goes on from.
    """
    interval = config.eval_interval or interval_of(config)
    if config.eval_interval is None and metric.startswith("eval/"):
        config = replace(config, eval_interval=interval)
    if peek(flags, "--agent.save-interval") is None:
        each = min(config.agent.save_interval, interval)
        config = replace(config, agent=replace(config.agent, save_interval=each))
    return config if config.keep_checkpoints else replace(config, keep_checkpoints=2)


def interval_of(config: TrainConfig) -> int:
    """Return the evaluation interval: a trial's iterations divided by LOOKS."""
    iterations = config.agent.max_iterations
    if config.total_steps is not None:
        envs = config.total_envs or config.env.num_envs
        iterations = config.total_steps // (envs * config.agent.num_steps_per_env)
    return max(1, iterations // LOOKS)
