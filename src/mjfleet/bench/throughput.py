"""`mjfleet bench throughput`: env steps per second, where the time goes, and the engine's limit.

Runs in the launching process; `throughput_child` measures each number of environments.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mjfleet.bench.benchmark_options import Options, Setup
from mjfleet.bench.result import Result, Spread, Table
from mjfleet.bench.timed_training import run_timed
from mjfleet.config.validation import at_least, check
from mjfleet.utils.child_process import python_module

PARTS = ("physics", "rest of the environment", "policy", "storage", "update", "reporting", "other")
NOTES = (
    "Medians of the repeats, with the least and the greatest. A repeat is a process of its own, "
    "whose own figures are medians over its iterations.",
    "End to end is everything between the ends of two iterations, reporting included; collecting "
    "is the rollout alone. The limit is the engine called with nothing around it, on as many "
    "worlds in the states in which the rollout has left them, with the same threads and physics "
    "steps, after every iteration; the ratio is that of the two times.",
    "Every second iteration is timed in parts, with the device waited for around each; the others "
    "give the speeds.",
)


@dataclass(frozen=True, kw_only=True)
class ThroughputOptions(Options):
    """Env steps per second and where the time goes, beside the engine's own limit."""

    num_envs: tuple[int, ...] = (256, 1024, 4096)
    """Numbers of environments to measure."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, iterations=at_least(2))


def throughput(setup: Setup, options: ThroughputOptions) -> Result:
    """Measure every number of environments in turn."""
    workers = {}
    for num_envs in options.num_envs:
        config = setup.config(num_envs, max_iterations=options.warmup + options.iterations)
        run_dir = setup.scratch / str(num_envs)
        run_dir.mkdir()
        workers[num_envs] = setup.worker_args(config, run_dir)

    def measure(num_envs: int) -> dict[str, Any]:
        worker = workers[num_envs]
        command = python_module("mjfleet.bench.throughput_child", json.dumps(asdict(worker)))
        child = run_timed(command, setup.scratch, {"OMP_WAIT_POLICY": "PASSIVE"})
        samples = json.loads(child.lines[-1][1])[options.warmup :]
        steps = worker.config["agent"]["num_steps_per_env"]
        return {"num_envs": num_envs, **_summary(samples, num_envs, steps)}

    measured = setup.rounds(options.num_envs, measure, "{} environments")
    worker = workers[options.num_envs[0]]
    limits = list(measured[0][1]["limits"])
    columns = ["worlds", "end to end", "collecting", *limits]
    columns += [f"collecting / {name}" for name in limits]
    speeds = []
    for num_envs, sample in measured:
        each = [sample["limits"][name] for name in limits]
        figures = [sample["steps_per_second"], sample["collecting_steps_per_second"]]
        figures += [limit["steps_per_second"] for limit in each]
        speeds.append((num_envs, [*figures, *(limit["ratio"] for limit in each)]))
    parts = {
        "Microseconds per vector step, one step of all worlds": "microseconds",
        "Share of the time": "shares",
    }
    return Result(
        name=f"throughput-{setup.found.name}-{worker.engine}-{setup.kind}",
        title=f"Throughput of {setup.found.name}: {worker.engine} engine on {setup.device}, "
        f"CPU threads: {worker.threads}",
        tables=[
            Table.of("Env steps per second", columns, speeds),
            *(
                Table.of(title, ["worlds", *PARTS], [(n, s[key].values()) for n, s in measured])
                for title, key in parts.items()
            ),
        ],
        notes=NOTES,
        samples=[sample for _, sample in measured],
    )


def _summary(samples: Sequence[Mapping[str, Any]], num_envs: int, steps: int) -> dict[str, Any]:
    """Summarise one process: shares from the iterations timed in parts, speeds from the others."""
    plain = [sample for sample in samples if "parts" not in sample]
    timed = [sample for sample in samples if "parts" in sample]
    parts = [sample["parts"] for sample in timed]
    for each, sample in zip(parts, timed, strict=True):
        each["other"] = sample["seconds"] - sum(each.values())

    def speed(seconds: Sequence[float]) -> float:
        return num_envs * steps / Spread.of(seconds).median

    limits = {
        name: {
            "steps_per_second": speed([s["limits"][name] for s in plain]),
            "ratio": Spread.of(s["limits"][name] / s["collect_seconds"] for s in plain).median,
        }
        for name in plain[0]["limits"]
    }
    shares = [
        {part: each[part] / s["seconds"] for part in PARTS}
        for each, s in zip(parts, timed, strict=True)
    ]
    return {
        "steps_per_second": speed([s["seconds"] for s in plain]),
        "collecting_steps_per_second": speed([s["collect_seconds"] for s in plain]),
        "limits": limits,
        "microseconds": {
            part: 1e6 / steps * Spread.of(each[part] for each in parts).median for part in PARTS
        },
        "shares": {part: Spread.of(each[part] for each in shares).median for part in PARTS},
    }
