"""`mjfleet bench scaling`: as much work for each of 1 to N workers.

Runs in the launching process.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from mjfleet.bench.options import ScalingOptions
from mjfleet.bench.result import Cell, Result, Spread, Table
from mjfleet.bench.setup import Setup
from mjfleet.bench.training import Trained, train_ours
from mjfleet.bench.workers import with_workers
from mjfleet.tools.plot_curves import Panel, draw

NOTES = (
    "Medians of the repeats, with the least and the greatest; each number of workers is measured "
    "in every round.",
    "Efficiency is the speed against that of one worker of the same round, times their number. One "
    "worker has as many worlds and CPU threads as each of several.",
    "Waiting is the mean time that workers wait for the slowest, collectives what they cost the "
    "slowest itself, both as shares of rollout and update.",
)


def scaling(setup: Setup, options: ScalingOptions) -> Result:
    """Train with each number of workers in turn."""
    most = options.workers or len(setup.devices.indices) or 2
    counts = sorted({*(2**power for power in range(most.bit_length())), most})
    cores = options.cpu_threads or len(os.sched_getaffinity(0))
    threads = max(1, cores // most)
    iterations = options.warmup + options.iterations
    configs = {}
    for count in reversed(counts):  # The most first: it is they who may be too many.
        config = with_workers(
            setup, count, options.num_envs, None if count > cores else count * threads
        )
        agent = replace(config.agent, max_iterations=iterations)
        configs[count] = replace(config, agent=agent)
    job = setup.job(configs[1], setup.scratch)
    taken = setup.rounds(
        counts, lambda count: train_ours(setup, configs[count])[0], lambda n: f"workers: {n}"
    )
    rows = {
        count: [_figures(t, options.warmup) for c, t in taken if c == count] for count in counts
    }
    for count, each in rows.items():
        for figures, alone in zip(each, rows[1], strict=True):
            figures["efficiency"] = figures["speed"] / alone["speed"] / count
    spreads = {
        count: {name: Spread.of(f[name] for f in each) for name in each[0]}
        for count, each in rows.items()
    }
    where = f"{job.engine} engine on {setup.kind}"
    name = f"scaling-{setup.found.name}-{job.engine}-{setup.kind}"
    columns = ["speed", "efficiency", "waiting", "collectives"]
    cells: list[list[Cell]] = [[str(n), *(spreads[n][c] for c in columns)] for n in counts]
    _plot(setup, f"{name}.png", spreads)
    return Result(
        name=name,
        title=f"Weak scaling of {setup.found.name}, {where}: {options.num_envs} worlds and "
        f"CPU threads {threads} for each worker",
        tables=[Table("Workers", ["workers", "env steps per second", *columns[1:]], cells)],
        notes=NOTES,
        plots=[f"{name}.png"],
        samples=[{"workers": count, **asdict(trained)} for count, trained in taken],
    )


def _figures(trained: Trained, warmup: int) -> dict[str, float]:
    """Speed and shares of a run, after its warm-up."""
    rows: Sequence[Mapping[str, Any]] = trained.iterations[warmup:]
    total = sum(row["collect_seconds"] + row["learn_seconds"] for row in rows)
    return {
        "speed": trained.steps_per_second,
        "waiting": sum(row["wait_seconds"] for row in rows) / total,
        "collectives": sum(row["collective_seconds"] for row in rows) / total,
    }


def _plot(setup: Setup, name: str, spreads: Mapping[int, Mapping[str, Spread]]) -> None:
    counts = list(spreads)
    speeds = [spreads[count]["speed"].median for count in counts]
    ideal = [speeds[0] * count for count in counts]
    efficiencies = [spreads[count]["efficiency"].median for count in counts]
    draw(
        setup.scratch / name,
        [
            Panel(
                "workers",
                "env steps per second",
                {"measured": [(counts, speeds)], "ideal": [(counts, ideal)]},
                is_count=True,
            ),
            Panel("workers", "efficiency", {"measured": [(counts, efficiencies)]}, is_count=True),
        ],
    )
