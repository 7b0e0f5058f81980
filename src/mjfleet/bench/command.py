"""`mjfleet bench throughput`, `scaling` and `startup`. In the launcher; children train."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from typing import Any, Literal

import tyro

from mjfleet.bench.benchmark import Counts, Options, Setup, run_benchmark
from mjfleet.bench.result import Result, Table
from mjfleet.bench.timed_training import TRAIN, run_timed, train_timed
from mjfleet.config import SACConfig
from mjfleet.config.validation import OptionalCount
from mjfleet.errors import UserError
from mjfleet.utils.child_process import python_module
from mjfleet.utils.hardware_names import usable_cores

MEDIANS = "Medians of the repeats, with the least and the greatest."
ITERATION = ("end to end", "rollout", "update", "environment", "engine", "engine / rollout")
ENGINE = (
    "Each repeat is a process, whose figures are medians over its iterations. End to end is all "
    "between two iterations but reporting. The engine is its own call with nothing around it, "
    "`Batch.step` or one graph of MuJoCo-Warp's steps, on the environments as the rollout left "
    "them, with the same threads and physics steps. The environment is that with resets, rewards "
    "and observations, by the actions of the rollout."
)
WORKERS = (
    "workers x environments", "env steps per second", "efficiency", "waiting", "collectives",
)  # fmt: skip
PHASE_COLUMNS = ("collect_seconds", "learn_seconds", "wait_seconds", "collective_seconds")
SHARES = (
    "Efficiency is the speed against that of one worker of the same round, with as many "
    "environments and CPU threads, times their number. Waiting is the mean time that workers wait "
    "for the slowest, collectives what they cost the slowest itself, as shares of rollout and "
    "update."
)
PHASES = ("start, imports and building", "first rollout and update")
CACHED = (
    "The system has files and kernels in its caches. The first rollout and update are what "
    "metrics.csv says."
)


@dataclass(frozen=True, kw_only=True)
class BenchOptions(Options):
    """Measure how fast a task trains on this machine."""

    what: tyro.conf.Positional[Literal["throughput", "scaling", "startup"]]
    """`throughput`: where the time goes, and what the bare engine could do; `scaling`: one worker,
    two, ...; `startup`: from Enter to help and to the first iteration."""
    num_envs: Counts = (1024,)
    """Numbers of environments of each worker to measure."""
    workers: OptionalCount = None
    """The most workers of `scaling`; `None`: one for each GPU of --gpu-ids, or 2 on the CPU."""


def bench(arguments: Sequence[str]) -> int:
    """Run one of BENCHMARKS; return the exit code."""

    def measure(setup: Setup, options: BenchOptions) -> Result:
        return BENCHMARKS[options.what](*as_in_long_runs(setup, options))

    return run_benchmark(BenchOptions, measure, "mjfleet bench", arguments)


def as_in_long_runs(setup: Setup, options: BenchOptions) -> tuple[Setup, BenchOptions]:
    """Return both such that what is measured has as many updates as in a run of the usual length.

    SAC's first iterations have none, and those of short runs more.
    """
    agent, envs = setup.base.agent, min(options.num_envs)
    if not isinstance(agent.algorithm, SACConfig):
        return setup, options
    transitions = envs * agent.num_steps_per_env * agent.max_iterations
    algorithm = agent.algorithm.for_length(transitions)
    rows = max(algorithm.n_step, -(-algorithm.warm_up // envs))
    options = replace(options, warmup=options.warmup + rows // agent.num_steps_per_env)
    base = replace(setup.base, agent=replace(agent, algorithm=algorithm))
    return replace(setup, base=base, options=options), options


def throughput(setup: Setup, options: BenchOptions) -> Result:
    """Measure every number of environments in turn."""
    for num_envs in options.num_envs:
        setup.worker_args(setup.config(num_envs))  # Raises before anything is measured.
    keys = [{"num_envs": n} for n in options.num_envs]
    samples = setup.rounds(keys, partial(time_parts, setup), "{num_envs} environments")
    tables = [
        Table.of(title, ["environments", *ITERATION], [(s["num_envs"], s[key]) for s in samples])
        for title, key in (
            ("Env steps per second", "speeds"),
            ("Milliseconds of an iteration", "milliseconds"),
        )
    ]
    return setup.result("throughput", tables, [MEDIANS, ENGINE], samples)


def time_parts(setup: Setup, num_envs: int) -> dict[str, Any]:
    """Train in a process; return the speed and the time of each part of ITERATION."""
    worker = setup.worker_args(setup.config(num_envs))
    child = python_module("mjfleet.bench.throughput_child", json.dumps(asdict(worker)))
    lines = run_timed(child, setup.scratch, {"OMP_WAIT_POLICY": "PASSIVE"}).lines
    iterations = json.loads(lines[-1][1])[setup.options.warmup :]
    seconds = [median(times) for times in zip(*iterations, strict=True)]
    share = median(engine / rollout for _, rollout, _, _, engine in iterations)
    steps = num_envs * worker.config["agent"]["num_steps_per_env"]
    return {
        "speeds": [*(steps / time for time in seconds), share],
        "milliseconds": [*(1e3 * time for time in seconds), share],
    }


def scaling(setup: Setup, options: BenchOptions) -> Result:
    """Train with each number of workers in turn; UserError if there are too few GPUs or threads."""
    gpus, cores = setup.devices.indices, setup.base.cpu_threads or usable_cores()
    most, limit = options.workers or len(gpus) or 2, len(gpus) or cores
    if most > limit:
        what = "GPUs" if gpus else "CPU threads"
        raise UserError(f"--workers is {most}; it must be at most {limit}, the number of {what}.")
    counts = sorted({*(2**power for power in range(most.bit_length())), most})
    keys = [{"num_envs": n, "workers": count} for n in options.num_envs for count in counts]
    alone: dict[int, float] = {}

    def measure(num_envs: int, workers: int) -> dict[str, Any]:
        config = setup.config(num_envs, workers=workers, threads=workers * max(1, cores // most))
        rows, _ = train_timed(setup.found, config, setup.scratch)
        start, end = rows[options.warmup - 1], rows[-1]
        steps, seconds = (end[name] - start[name] for name in ("total_steps", "seconds"))
        speed = steps / seconds
        if workers == 1:  # Each round begins with one worker.
            alone[num_envs] = speed
        sums = [sum(row[name] for row in rows[options.warmup :]) for name in PHASE_COLUMNS]
        shares = [time / (sums[0] + sums[1]) for time in sums[2:]]
        return {"figures": [speed, speed / alone[num_envs] / workers, *shares], "iterations": rows}

    samples = setup.rounds(keys, measure, "{workers} x {num_envs}")
    rows = [(f"{s['workers']} x {s['num_envs']}", s["figures"]) for s in samples]
    table = Table.of("Workers", WORKERS, rows)
    return setup.result("scaling", [table], [MEDIANS, SHARES], samples)


def startup(setup: Setup, options: BenchOptions) -> Result:
    """Measure help and first iterations in turn."""
    found, scratch = setup.found, setup.scratch
    helps = {"`train --help`": ["--help"], "`train <task> --help`": [found.name, "--help"]}
    configs = {
        f"first iteration, {n} environments": setup.config(n, max_iterations=1)
        for n in options.num_envs
    }

    def measure(what: str) -> dict[str, Any]:
        if what in helps:
            return {"seconds": run_timed([*TRAIN, *helps[what]], scratch).seconds}
        row = train_timed(found, configs[what], scratch)[0][0]
        learned = row["collect_seconds"] + row["learn_seconds"]
        return {"seconds": row["seconds"], "phases": [row["seconds"] - learned, learned]}

    samples = setup.rounds([{"what": what} for what in (*helps, *configs)], measure, "{what}")
    totals = [(s["what"], [s["seconds"]]) for s in samples]
    phases = [(s["what"], s["phases"]) for s in samples if "phases" in s]
    tables = [
        Table.of("Seconds from Enter", ["", "seconds"], totals),
        Table.of("Where they go", ["", *PHASES], phases),
    ]
    return setup.result("startup", tables, [MEDIANS, CACHED], samples)


BENCHMARKS = {"throughput": throughput, "scaling": scaling, "startup": startup}
