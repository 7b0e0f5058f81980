"""`mjfleet bench learning`: the reward after so many samples, and so long. In the launcher."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from mjfleet.bench.benchmark_options import Options, Setup
from mjfleet.bench.mjlab_setup import find_peer, train_peer
from mjfleet.bench.result import Cell, Result, Spread, Table
from mjfleet.bench.timed_training import train_ours
from mjfleet.config.validation import Count
from mjfleet.tools.plot import Line, Panel, draw
from mjfleet.utils.packages import need_extra, stack_versions

LAST = 10  # Iterations at the end of a run whose mean counts.
GOOD = 0.9  # Share of the best mean reward at the end of any run, which the runs are to reach.
NOTES = (
    "Medians of the seeds, with the least and the greatest; seeds are trained one after the other, "
    "each by all in turn, with the same settings.",
    "The reward is the mean over all steps of an iteration, of exploring policies; that at the end "
    f"over the last {LAST} iterations. Good is {GOOD:.0%} of the best run's at the end, once "
    "a run does not fall below it any more.",
)
AXES = {"million env steps": "samples", "seconds from Enter": "seconds"}


@dataclass(frozen=True, kw_only=True)
class LearningOptions(Options):
    """Reward against samples and against time, over seeds, by mjfleet and by another."""

    iterations: int = 150
    """Iterations of each run. All are measured: --warmup has no effect."""
    repeats: int = 3
    """Seeds, from 1 on."""
    num_envs: Count = 1024
    """Environments."""
    peer: Literal["mjlab", "skrl", "skrl-jax", "rl_games", "grpo", "none"] = "mjlab"
    """The stack to compare with, or what learns here instead of our PPO: a library's, or GRPO."""


def learning(setup: Setup, options: LearningOptions) -> Result:
    """Train with seeds 1, 2, ... by mjfleet and, where one is asked for, by a peer."""
    configs = [
        setup.config(options.num_envs, max_iterations=options.iterations, seed=seed)
        for seed in range(1, options.repeats + 1)
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
        return train_ours(setup, config, (flag, who) if who != "mjfleet" else ())[0]

    samples = setup.rounds([{"who": who} for who in names], measure, "{who}")
    runs = {who: [sample for sample in samples if sample["who"] == who] for who in names}
    steps = options.num_envs * configs[0].agent.num_steps_per_env
    name = f"learning-{setup.found.name}-{worker.engine}-{setup.kind}"
    name += f"-{options.peer}" if is_ours else ""
    panels = []
    for label, axis in AXES.items():
        lines = {who: [_line(run, steps, axis) for run in each] for who, each in runs.items()}
        panels.append(Panel(label, "reward per step", lines))
    draw(setup.scratch / f"{name}.png", panels)
    good = GOOD * max(_end(run) for each in runs.values() for run in each)
    columns = ["", "reward per step at the end", "seconds from Enter to the end"]
    rows: list[list[Cell]] = []
    for who, each in runs.items():
        ends = [run["iterations"][-1]["seconds"] for run in each]
        reached = [until_good(each, good, steps, axis) for axis in AXES.values()]
        rows.append([who, Spread.of(map(_end, each)), Spread.of(ends), *reached])
    title = f"Learning {setup.found.name}, {worker.engine} engine on {setup.kind}: "
    title += f"{options.num_envs} worlds, seeds: {options.repeats}"
    title += f", beside {options.peer}" if is_ours else ""
    tables = [Table("Reward", [*columns, *(f"{label} until good" for label in AXES)], rows)]
    notes = [*NOTES, *(peer.notes if peer else ())]
    versions = peer.versions if peer else stack_versions(*other.packages)
    return Result(name, title, tables, notes, samples, versions=versions, plots=[f"{name}.png"])


def until_good(runs: Sequence[dict[str, Any]], good: float, steps: int, axis: str) -> Cell:
    """Return where the runs became good and remained so; how many did, if not all did."""
    reached = []
    for run in runs:
        x, rewards = _line(run, steps, axis)
        poor = [number for number, reward in enumerate(rewards) if reward < good]
        begin = poor[-1] + 1 if poor else 0
        reached += x[begin : begin + 1]
    return Spread.of(reached) if len(reached) == len(runs) else f"{len(reached)} of {len(runs)} did"


def _line(run: dict[str, Any], steps: int, axis: str) -> Line:
    """Return a run's mean rewards against millions of samples, or seconds since its start."""
    millions = [(number + 1) * steps / 1e6 for number in range(len(run["iterations"]))]
    x = millions if axis == "samples" else [row["seconds"] for row in run["iterations"]]
    return x, [row["mean_reward"] for row in run["iterations"]]


def _end(run: dict[str, Any]) -> float:
    """Return the mean reward of a run's last iterations."""
    return fmean(row["mean_reward"] for row in run["iterations"][-LAST:])
