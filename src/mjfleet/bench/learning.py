"""`mjfleet bench learning`: how good the policy is after so many samples, and after so long.

Runs in the launching process.
"""

from collections.abc import Sequence
from dataclasses import asdict

from mjfleet.bench.options import LearningOptions
from mjfleet.bench.peer import OURS
from mjfleet.bench.peers.known import PEERS
from mjfleet.bench.result import Cell, Result, Spread, Table
from mjfleet.bench.setup import Setup
from mjfleet.bench.training import Trained, train_ours
from mjfleet.tools.plot_curves import Line, Panel, draw

LAST = 10
"""Iterations at the end of a run whose mean counts."""
GOOD = 0.9
"""Share of the best mean reward at the end of any run, which the runs are to reach."""
NOTES = (
    "Medians of the seeds, with the least and the greatest; seeds are trained one after the other, "
    "each by all in turn, with the same settings.",
    "The reward is the mean over all steps of an iteration, of exploring policies; that at the end "
    f"over the last {LAST} iterations. Good is {GOOD:.0%} of the best run's at the end, once "
    "a run does not fall below it any more.",
)


def learning(setup: Setup, options: LearningOptions) -> Result:
    """Train with seeds 1, 2, ... by us and, where one is asked for, by a peer."""
    configs = [
        setup.config(options.num_envs, max_iterations=options.iterations, seed=seed)
        for seed in range(1, options.repeats + 1)
    ]
    job = setup.job(configs[0], setup.scratch)
    peer = PEERS[options.peer](setup) if options.peer != "none" else None
    names = [OURS, *([peer.name] if peer else [])]
    notes: dict[str, None] = {}

    def measure(name: str) -> Trained:
        config = next(seeds[name])
        if peer and name == peer.name:
            trained, differences = peer.train(config, True)
            notes.update(dict.fromkeys(differences))
            return trained
        return train_ours(setup, config)[0]

    seeds = {name: iter(configs) for name in names}
    taken = setup.rounds(names, measure)
    runs = {name: [trained for key, trained in taken if key == name] for name in names}
    steps = options.num_envs * configs[0].agent.num_steps_per_env
    file = f"learning-{setup.found.name}-{job.engine}-{setup.kind}"
    samples, seconds = (
        {name: [_line(run, steps, axis) for run in each] for name, each in runs.items()}
        for axis in ("samples", "seconds")
    )
    draw(
        setup.scratch / f"{file}.png",
        [
            Panel("million env steps", "reward per step", samples),
            Panel("seconds from Enter", "reward per step", seconds),
        ],
    )
    good = GOOD * max(_end(run) for each in runs.values() for run in each)
    columns = ["", "reward per step at the end", "seconds from Enter to the end"]
    columns += ["million env steps until good", "seconds from Enter until good"]
    rows: list[list[Cell]] = [
        [
            name,
            Spread.of(_end(run) for run in each),
            Spread.of(run.iterations[-1]["seconds"] for run in each),
            *(until_good(each, good, steps, axis) for axis in ("samples", "seconds")),
        ]
        for name, each in runs.items()
    ]
    return Result(
        name=file,
        title=f"Learning {setup.found.name}, {job.engine} engine on {setup.kind}: "
        f"{options.num_envs} worlds, seeds: {options.repeats}",
        tables=[Table("Reward", columns, rows)],
        versions=peer.versions if peer else {},
        notes=[*NOTES, *(peer.notes if peer else ()), *notes],
        plots=[f"{file}.png"],
        samples=[{"who": name, **asdict(trained)} for name, trained in taken],
    )


def _line(run: Trained, steps: int, axis: str) -> Line:
    """Mean rewards of a run against millions of samples, or seconds since its start."""
    millions = [(number + 1) * steps / 1e6 for number in range(len(run.iterations))]
    x = millions if axis == "samples" else [row["seconds"] for row in run.iterations]
    return x, [row["mean_reward"] for row in run.iterations]


def _end(run: Trained) -> float:
    rewards = [row["mean_reward"] for row in run.iterations[-LAST:]]
    return sum(rewards) / len(rewards)


def until_good(runs: Sequence[Trained], good: float, steps: int, axis: str) -> Cell:
    """Where each run had become good and remained so; how many did, if not all."""
    took = []
    for run in runs:
        x, rewards = _line(run, steps, axis)
        poor = [number for number, reward in enumerate(rewards) if reward < good]
        begin = poor[-1] + 1 if poor else 0
        took += x[begin : begin + 1]
    return Spread.of(took) if len(took) == len(runs) else f"{len(took)} of {len(runs)} did"
