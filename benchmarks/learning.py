"""What is learned from so many samples, in so long, over seeds; beside mjlab or another learner.

python benchmarks/learning.py [TASK] [flags]
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from mjfleet.bench.benchmark import Setup, run_script
from mjfleet.bench.result import Cell, Result, Spread, Table
from mjfleet.config import TrainConfig
from mjfleet.config.validation import MAX_COUNT, Count, Rule, at_least, between
from mjfleet.tools.report.curves import bootstrap, select
from mjfleet.tools.report.picture import Panel, draw
from mjfleet.utils.packages import need_extra, stack_versions
from peer import MjlabOptions, find_peer, train_ours, train_peer

WINDOW = 10  # Iterations whose mean has to hold: a single one may do so by chance.
CONDITION = re.compile(r"\s*(\S+?)\s*([<>])\s*([+-]?\d*\.?\d+(?:[eE][+-]?\d+)?)\s*")
CONDITIONS = Rule(
    lambda texts: all(map(CONDITION.fullmatch, texts)),
    "conditions such as `task/velocity_error < 0.27`: a metric, < or >, and a number, all in "
    "quotation marks",
)
GOOD = 0.9  # Share of the best mean reward at the end of any run, which the runs are to reach.
NOTES = (
    "Medians of the seeds, with the least and the greatest, of exploring policies; seeds are "
    "trained one after the other, each by all in turn, with the same settings.",
    f"The reward at the end is the mean over all steps of the last {WINDOW} iterations. Good is "
    f"{GOOD:.0%} of the best run's, once a run does not fall below it any more. Conditions count "
    f"as reached at the end of {WINDOW} iterations whose means hold all of them.",
)
POINTS = 300  # Points of a line.
AXES = {"million env steps": "samples", "seconds from Enter": "seconds"}
Condition = tuple[str, str, float]  # A metric, < or >, and a number.
Run = Sequence[Mapping[str, Any]]  # The rows of its iterations, with the values of all AXES.
Runs = Mapping[str, Sequence[Run]]  # By who trained.


@dataclass(frozen=True, kw_only=True)
class LearningOptions(MjlabOptions):
    """Reward against samples and against time, over seeds, by mjfleet and by another."""

    iterations: Annotated[int, at_least(WINDOW)] = 150
    """Iterations of each run. All are measured: --warmup has no effect."""
    repeats: Count = 3
    """Seeds, each greater by one than the last."""
    seed: Annotated[int, between(0, MAX_COUNT)] = 1
    """The first seed."""
    until: Annotated[tuple[str, ...], CONDITIONS] = ()
    """Conditions that each run is to reach: "task/velocity_error < 0.27". Without any: 90% of the
    best reward."""
    num_envs: Count = 1024
    """Environments."""
    peer: Literal["mjlab", "skrl", "skrl-jax", "rl_games", "grpo", "sac", "none"] = "mjlab"
    """The stack to compare with, or what learns here instead of our PPO: a library's, GRPO, or SAC
    with its usual environments and steps, from as many samples."""


def learning(setup: Setup, options: LearningOptions) -> Result:
    """Train with several seeds by mjfleet and, where one is asked for, by a peer.

    UserError if the peer cannot be had, or `--until` asks for what it does not report.
    """
    until = [condition(text) for text in options.until]
    num_envs, iterations = options.num_envs, options.iterations
    seeds = range(options.seed, options.seed + options.repeats)
    configs = [setup.config(num_envs, max_iterations=iterations, seed=seed) for seed in seeds]
    peer = find_peer("mjlab", setup, options.mjlab) if options.peer == "mjlab" else None
    library = options.peer if options.peer not in ("mjlab", "grpo", "sac", "none") else "rsl_rl"
    other = setup.config(num_envs, library=library).agent
    need_extra(other.extra, f"--peer {options.peer}", other.packages)
    names = [who for who in dict.fromkeys(["mjfleet", options.peer]) if who != "none"]

    def train(who: str, config: TrainConfig) -> dict[str, Any]:
        if peer and who == peer.name:
            return train_peer(setup, peer, config)
        if who == "sac":
            return train_ours(setup, with_sac(setup, config))
        flag = "--agent.algorithm.name" if who == "grpo" else "--agent.library"
        return train_ours(setup, config, (flag, who) if who != "mjfleet" else ())

    for who in names if until else ():  # A wrong name of a metric shows before hours have passed.
        once = train(who, setup.config(num_envs, max_iterations=1))
        select([metric for metric, _, _ in until], list(once["iterations"][0]))
    left = {who: iter(configs) for who in names}
    keys = [{"who": who} for who in names]
    samples = setup.rounds(keys, lambda who: train(who, next(left[who])), "{who}")
    steps = {who: steps_of(with_sac(setup, configs[0]) if who == "sac" else configs[0])
             for who in names}  # fmt: skip
    runs: dict[str, list[Run]] = {who: [] for who in names}
    for sample in samples:
        rows = enumerate(sample["iterations"], 1)
        runs[sample["who"]].append(
            [{**row, "samples": n * steps[sample["who"]] / 1e6} for n, row in rows]
        )
    what = f"learning-{options.peer}" + "-until" * bool(until)
    plot = f"{what}-{setup.found.name}.png"
    Path(options.output).mkdir(parents=True, exist_ok=True)
    draw(Path(options.output, plot), _panels(runs, until))
    table = table_of(runs, until, options.until)
    versions = peer.versions if peer else stack_versions(*other.packages)
    notes = [*NOTES, *(peer.lacks if peer else ())]
    return setup.result(what, [table], notes, samples, plots=[plot], versions=versions)


def with_sac(setup: Setup, config: TrainConfig) -> TrainConfig:
    """Return a configuration in which SAC learns from as many samples."""
    changed = setup.found.with_algorithm(config, "sac")
    if setup.devices.indices:
        changed = setup.found.with_usual_on_gpu(changed, ())
    iterations = -(-config.agent.max_iterations * steps_of(config) // steps_of(changed))
    return replace(changed, agent=replace(changed.agent, max_iterations=iterations))


def steps_of(config: TrainConfig) -> int:
    """Return the steps of all environments in an iteration."""
    return config.env.num_envs * config.agent.num_steps_per_env


def _panels(runs: Runs, until: Sequence[Condition]) -> list[Panel]:
    """Return plots of what is to be reached against both axes."""
    panels = []
    for metric in dict.fromkeys(name for name, _, _ in until) or ["mean_reward"]:
        for label, axis in AXES.items():
            lines = {
                who: mean_line([(values_of(run, axis), values_of(run, metric)) for run in some])
                for who, some in runs.items()
            }
            end = max(line[0, -1] for line in lines.values())
            for name, sign, number in until:
                if name == metric:
                    lines[f"{sign} {number:g}"] = np.array([[0.0, end], [number] * 2])
            panels.append(Panel(label, metric if until else "reward per step", lines))
    return panels


def values_of(run: Run, metric: str) -> np.ndarray:
    """Return a metric of each iteration; NaN where there is none."""
    return np.array([row.get(metric, np.nan) for row in run], dtype=float)


def mean_line(lines: Sequence[tuple[Sequence[float] | np.ndarray, ...]]) -> np.ndarray:
    """Return x, and the mean, low and high of its interval, of lines `(x, y)`: `(4, points)`."""
    x = np.linspace(min(x[0] for x, _ in lines), max(x[-1] for x, _ in lines), POINTS)
    values = np.stack([np.interp(x, *line, left=np.nan, right=np.nan) for line in lines])
    known = ~np.isnan(values).all(axis=0)
    return np.stack([x[known], *bootstrap(values[:, known])])


def table_of(runs: Runs, until: Sequence[Condition], texts: Sequence[str] = ()) -> Table:
    """Return the reward at the end, and when the conditions held or, without any, it was good."""
    at_end = {
        who: [fmean(row["mean_reward"] for row in run[-WINDOW:]) for run in each]
        for who, each in runs.items()
    }
    good = GOOD * max(map(max, at_end.values()))
    what, rows = " and ".join(texts) or "good", list[list[Cell]]()
    for who, each in runs.items():
        ends = [reached(until, run) if until else good_from(run, good) for run in each]
        found = [run[n] for run, n in zip(each, ends, strict=True) if n is not None]
        at = [Spread.of(row[axis] for row in found) if found else None for axis in AXES.values()]
        seconds = Spread.of(run[-1]["seconds"] for run in each)
        rows.append([who, Spread.of(at_end[who]), seconds, f"{len(found)} of {len(each)}", *at])
    columns = "", "reward per step at the end", "seconds from Enter to the end", f"were {what}"
    return Table("Reward", [*columns, *(f"{label} until then" for label in AXES)], rows)


def condition(text: str) -> Condition:
    """Return the metric, the sign and the number of a text that `CONDITIONS` allows."""
    metric, sign, number = CONDITION.findall(text)[0]
    return metric, sign, float(number)


def reached(until: Sequence[Condition], run: Run) -> int | None:
    """Return the first iteration, from 0, at whose end all hold for the means over WINDOW."""
    held = []
    for metric, sign, number in until:
        means = sliding_window_view(values_of(run, metric), WINDOW).mean(axis=1)
        held.append(means < number if sign == "<" else means > number)
    ends = np.flatnonzero(np.all(held, axis=0))
    return int(ends[0]) + WINDOW - 1 if len(ends) else None


def good_from(run: Run, good: float) -> int | None:
    """Return the first iteration, from 0, from which on no reward is below `good`."""
    poor = [number for number, row in enumerate(run, 1) if row["mean_reward"] < good]
    return first if (first := max(poor, default=0)) < len(run) else None


if __name__ == "__main__":
    run_script(LearningOptions, learning)
