"""`mjfleet bench learning`: what is learned from so many samples, in so long. In the launcher."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any, Literal

from mjfleet.bench.benchmark_options import Options, Setup
from mjfleet.bench.peers import find_peer, train_peer
from mjfleet.bench.result import Cell, Result, Spread, Table, show
from mjfleet.bench.timed_training import train_ours
from mjfleet.config.validation import MOST, Count, between
from mjfleet.errors import UserError
from mjfleet.tools.bootstrap import Line
from mjfleet.tools.plot import Panel, draw
from mjfleet.tools.threshold import WINDOW, Conditions, Threshold, reached
from mjfleet.utils.packages import need_extra, stack_versions

LAST = 10  # Iterations at the end of a run whose mean counts.
GOOD = 0.9  # Share of the best mean reward at the end of any run, which the runs are to reach.
SEEDS = (
    "Medians of the seeds, with the least and the greatest; seeds are trained one after the other, "
    "each by all in turn, with the same settings."
)
REWARD = (
    "The reward is the mean over all steps of an iteration, of exploring policies; that at the end "
    f"over the last {LAST} iterations. Good is {GOOD:.0%} of the best run's at the end, once "
    "a run does not fall below it any more."
)
THRESHOLDS = (
    "Metrics are means over an iteration, of exploring policies. They count as reached at the end "
    f"of {WINDOW} iterations whose means hold all conditions at once, and training then stops."
)
AXES = {"million env steps": "samples", "seconds from Enter": "seconds"}
Run = Sequence[Mapping[str, Any]]  # The rows of its iterations, with the values of all AXES.
Runs = Mapping[str, Sequence[Run]]  # By who trained.


@dataclass(frozen=True, kw_only=True)
class LearningOptions(Options):
    """Reward against samples and against time, over seeds, by mjfleet and by another."""

    iterations: int = 150
    """Iterations of each run. All are measured: --warmup has no effect."""
    repeats: int = 3
    """Seeds, each greater by one than the last."""
    seed: Annotated[int, between(0, MOST)] = 1
    """The first seed."""
    until: Conditions = ()
    """Conditions that each run is to reach, and at which it stops: "task/velocity_error < 0.27".
    Without any: 90% of the best reward."""
    num_envs: Count = 1024
    """Environments."""
    peer: Literal["mjlab", "skrl", "skrl-jax", "rl_games", "grpo", "none"] = "mjlab"
    """The stack to compare with, or what learns here instead of our PPO: a library's, or GRPO."""


def learning(setup: Setup, options: LearningOptions) -> Result:
    """Train with several seeds by mjfleet and, where one is asked for, by a peer.

    UserError if the peer cannot be had, or `--until` asks for what it does not report.
    """
    until = [Threshold.parse(text) for text in options.until]
    _check_until(until, options)
    configs = [
        setup.config(options.num_envs, max_iterations=options.iterations, seed=seed)
        for seed in range(options.seed, options.seed + options.repeats)
    ]
    worker = setup.worker_args(configs[0], setup.scratch)
    peer = find_peer(options.peer, setup) if options.peer == "mjlab" else None
    is_ours = options.peer not in ("mjlab", "none")
    library = options.peer if is_ours and options.peer != "grpo" else "rsl_rl"
    other = setup.config(options.num_envs, library=library).agent
    need_extra(other.extra, f"--peer {options.peer}", other.packages)
    names = ["mjfleet"] if options.peer == "none" else ["mjfleet", options.peer]
    left = {who: iter(configs) for who in names}

    def measure(who: str) -> dict[str, Any]:
        config = next(left[who])
        if peer and who == peer.name:
            return train_peer(setup, peer, config, records_rewards=True)
        flag = "--agent.algorithm.name" if who == "grpo" else "--agent.library"
        return train_ours(setup, config, (flag, who) if who != "mjfleet" else (), until=until)[0]

    samples = setup.rounds([{"who": who} for who in names], measure, "{who}")
    steps = options.num_envs * configs[0].agent.num_steps_per_env
    runs: dict[str, list[Run]] = {who: [] for who in names}
    for sample in samples:
        rows = enumerate(sample["iterations"], 1)
        runs[sample["who"]].append([{**row, "samples": n * steps / 1e6} for n, row in rows])
    name = f"learning-{setup.found.name}-{worker.engine}-{setup.kind}"
    name += f"-{options.peer}" if is_ours else ""
    name += "-until" if until else ""
    title = f"Learning {setup.found.name}, {worker.engine} engine on {setup.kind}: "
    title += f"{options.num_envs} worlds, seeds: {options.repeats}"
    title += f", beside {options.peer}" if is_ours else ""
    draw(setup.scratch / f"{name}.png", _panels(runs, until))
    table = _thresholds(runs, until) if until else _rewards(runs)
    notes = [SEEDS, THRESHOLDS if until else REWARD, *(peer.notes if peer else ())]
    versions = peer.versions if peer else stack_versions(*other.packages)
    return Result(name, title, [table], notes, samples, versions=versions, plots=[f"{name}.png"])


def _check_until(until: Sequence[Threshold], options: LearningOptions) -> None:
    if until and options.iterations < WINDOW:
        raise UserError(
            f"--iterations is {options.iterations}; with --until it must be at least {WINDOW}, "
            "over which the metrics are averaged."
        )
    for threshold in until:
        if options.peer == "mjlab" and threshold.metric != "mean_reward":
            raise UserError(
                f"--until '{threshold}': of mjlab, only mean_reward is known. --peer none trains "
                "without it."
            )


def _panels(runs: Runs, until: Sequence[Threshold]) -> list[Panel]:
    """Return plots of what is to be reached against both axes."""
    panels = []
    for metric in dict.fromkeys(t.metric for t in until) or ["mean_reward"]:
        for label, axis in AXES.items():
            lines = {who: [_line(run, axis, metric) for run in runs[who]] for who in runs}
            if until:
                x = [0.0, max(x[-1] for each in lines.values() for x, _ in each)]
                lines["to be reached"] = [(x, [t.value] * 2) for t in until if t.metric == metric]
            panels.append(Panel(label, metric if until else "reward per step", lines))
    return panels


def _rewards(runs: Runs) -> Table:
    """Return the reward at the end, and when it was good, in the view of the best run."""
    good = GOOD * max(_end(run) for each in runs.values() for run in each)
    columns = ["", "reward per step at the end", "seconds from Enter to the end"]
    rows: list[list[Cell]] = []
    for who, each in runs.items():
        ends = [run[-1]["seconds"] for run in each]
        at = [until_good(each, good, axis) for axis in AXES.values()]
        rows.append([who, Spread.of(map(_end, each)), Spread.of(ends), *at])
    return Table("Reward", [*columns, *(f"{label} until good" for label in AXES)], rows)


def _thresholds(runs: Runs, until: Sequence[Threshold]) -> Table:
    """Return when the thresholds were reached."""
    rows: list[list[Cell]] = []
    for who, each in runs.items():
        found = [run[n] for run in each if (n := reached(until, run)) is not None]
        at = [[row[axis] for row in found] for axis in AXES.values()]
        rows.append([who, *(_of_all(values, each) for values in at)])
    return Table(f"Until {' and '.join(map(str, until))}", ["", *AXES], rows)


def until_good(runs: Sequence[Run], good: float, axis: str) -> Cell:
    """Return where the runs became good and remained so, and how many did, if not all did."""
    found: list[float] = []
    for run in runs:
        poor = [number for number, row in enumerate(run, 1) if row["mean_reward"] < good]
        found += [row[axis] for row in run[max(poor, default=0) :][:1]]
    return _of_all(found, runs)


def _of_all(values: Sequence[float], runs: Sequence[Any]) -> Cell:
    """Return the values of the runs; how many runs have one, if not all do."""
    if len(values) == len(runs):
        return Spread.of(values)
    return f"{len(values)} of {len(runs)} did" + (f": {show(Spread.of(values))}" if values else "")


def _line(run: Run, axis: str, metric: str) -> Line:
    """Return a run's metric against an axis."""
    return [row[axis] for row in run], [row.get(metric, math.nan) for row in run]


def _end(run: Run) -> float:
    """Return the mean reward of a run's last iterations."""
    return fmean(row["mean_reward"] for row in run[-LAST:])
