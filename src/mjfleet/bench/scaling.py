"""`mjfleet bench scaling`: as much work for each of 1 to N workers. In the launcher."""

from dataclasses import dataclass
from typing import Any, Literal

from mjfleet.bench.benchmark_options import Options, Setup
from mjfleet.bench.result import Result, Table
from mjfleet.bench.timed_training import train_timed
from mjfleet.config.validation import Count, OptionalCount
from mjfleet.utils.hardware_names import usable_cores

NOTES = (
    "Medians of the repeats, with the least and the greatest. Efficiency is the speed against that "
    "of one worker of the same round, which has as many environments and CPU threads as each of "
    "several, times their number.",
    "Waiting is the mean time that workers wait for the slowest, collectives what they cost the "
    "slowest itself, both as shares of rollout and update.",
)
SECONDS = ("collect_seconds", "learn_seconds", "wait_seconds", "collective_seconds")
COLUMNS = ("workers", "env steps per second", "efficiency", "waiting", "collectives")


@dataclass(frozen=True, kw_only=True)
class ScalingOptions(Options):
    """Weak scaling: the same environments and threads for each of 1 to N workers."""

    several = True

    gpu_ids: list[int] | Literal["auto", "all"] | None = "all"
    """`all` visible GPUs, else the CPU; `None` (the CPU), or indices of visible GPUs."""
    workers: OptionalCount = None
    """The most workers; `None`: the number of visible GPUs, or 2 on the CPU."""
    num_envs: Count = 1024
    """Environments of each worker."""


def scaling(setup: Setup, options: ScalingOptions) -> Result:
    """Train with each number of workers in turn."""
    most = options.workers or len(setup.devices.indices) or 2
    counts = sorted({*(2**power for power in range(most.bit_length())), most})
    cores = options.cpu_threads or usable_cores()
    threads = max(1, cores // most)
    configs = {}
    for count in reversed(counts):  # An error is about the most workers.
        shared = None if count > cores else count * threads
        configs[count] = setup.config(options.num_envs, workers=count, threads=shared)
    worker = setup.worker_args(configs[1], setup.scratch)

    def measure(workers: int) -> dict[str, Any]:
        rows, _ = train_timed(setup.found.name, configs[workers], setup.scratch)
        start, end = rows[options.warmup - 1], rows[-1]
        steps, seconds = (end[name] - start[name] for name in ("total_steps", "seconds"))
        return {"steps_per_second": steps / seconds, "iterations": rows}

    samples = setup.rounds([{"workers": n} for n in counts], measure, "workers: {workers}")
    rows: list[tuple[int, list[float]]] = []
    alone = 0.0
    for sample in samples:
        count, speed = sample["workers"], sample["steps_per_second"]
        alone = speed if count == 1 else alone  # Each round begins with one worker.
        measured = sample["iterations"][options.warmup :]
        sums = {name: sum(row[name] for row in measured) for name in SECONDS}
        total = sums["collect_seconds"] + sums["learn_seconds"]
        shares = [sums["wait_seconds"] / total, sums["collective_seconds"] / total]
        rows.append((count, [speed, speed / alone / count, *shares]))
    name = f"scaling-{setup.found.name}-{worker.engine}-{setup.kind}"
    title = f"Weak scaling of {setup.found.name}, {worker.engine} engine on {setup.kind}: "
    title += f"{options.num_envs} environments and CPU threads {threads} for each worker"
    return Result(name, title, [Table.of("Workers", COLUMNS, rows)], NOTES, samples)
