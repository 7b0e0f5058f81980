"""`mjfleet bench throughput`: env steps per second, where the time goes, the engine's limit.

Runs in the launcher; `throughput_child` measures each number of environments.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Annotated, Any

from mjfleet.bench.benchmark_options import Counts, Options, Setup
from mjfleet.bench.result import Result, Table
from mjfleet.bench.timed_training import run_timed
from mjfleet.config.validation import at_least
from mjfleet.utils.child_process import python_module

SPEEDS = ("end to end", "collecting", "engine", "collecting / engine")
PARTS = ("physics", "rest of the environment", "policy", "update", "other")
NOTES = (
    "Medians of the repeats, with the least and the greatest. A repeat is a process of its own, "
    "whose own figures are medians over its iterations: every second one is timed in parts, with "
    "the device waited for around each, and the others give the speeds.",
    "End to end is all between two iterations but reporting, collecting the rollout alone. The "
    "engine is its own call with nothing around it, `Batch.step` or one graph of MuJoCo-Warp's "
    "steps, on the environments as the rollout left them, with the same threads and physics steps.",
)


@dataclass(frozen=True, kw_only=True)
class ThroughputOptions(Options):
    """Env steps per second and where the time goes, beside the engine's own limit."""

    num_envs: Counts = (256, 1024, 4096)
    """Numbers of environments to measure."""
    iterations: Annotated[int, at_least(2)] = 20
    """Iterations to measure in each run."""


def throughput(setup: Setup, options: ThroughputOptions) -> Result:
    """Measure every number of environments in turn."""
    workers = {n: setup.worker_args(setup.config(n), setup.scratch) for n in options.num_envs}

    def measure(num_envs: int) -> dict[str, Any]:
        worker = workers[num_envs]
        child = python_module("mjfleet.bench.throughput_child", json.dumps(asdict(worker)))
        lines = run_timed(child, setup.scratch, {"OMP_WAIT_POLICY": "PASSIVE"}).lines
        steps = worker.config["agent"]["num_steps_per_env"]
        return _summary(json.loads(lines[-1][1])[options.warmup :], num_envs, steps)

    keys = [{"num_envs": n} for n in options.num_envs]
    samples = setup.rounds(keys, measure, "{num_envs} environments")
    tables = [
        Table.of(
            title, ["environments", *columns], [(s["num_envs"], s[key].values()) for s in samples]
        )
        for title, key, columns in (
            ("Env steps per second", "speeds", SPEEDS),
            ("Microseconds per vector step, one step of all environments", "microseconds", PARTS),
            ("Share of the time", "shares", PARTS),
        )
    ]
    worker = workers[options.num_envs[0]]
    name = f"throughput-{setup.found.name}-{worker.engine}-{setup.kind}"
    where = f"{worker.engine} engine on {setup.device}, CPU threads: {worker.threads}"
    return Result(name, f"Throughput of {setup.found.name}: {where}", tables, NOTES, samples)


def _summary(
    samples: Sequence[Mapping[str, Any]], num_envs: int, steps: int
) -> dict[str, dict[str, float]]:
    """Summarise one process: shares from the iterations timed in parts, speeds from the others."""
    plain = [sample for sample in samples if not sample["parts"]]
    timed = [(s["seconds"], s["parts"]) for s in samples if s["parts"]]
    parts = [(all_, each | {"other": all_ - sum(each.values())}) for all_, each in timed]
    ratio = median(s["engine_seconds"] / s["collect_seconds"] for s in plain)
    times = ("seconds", "collect_seconds", "engine_seconds")
    speeds = [*(num_envs * steps / median(s[name] for s in plain) for name in times), ratio]
    return {
        "speeds": dict(zip(SPEEDS, speeds, strict=True)),
        "microseconds": {p: 1e6 / steps * median(each[p] for _, each in parts) for p in PARTS},
        "shares": {p: median(each[p] / all_ for all_, each in parts) for p in PARTS},
    }
