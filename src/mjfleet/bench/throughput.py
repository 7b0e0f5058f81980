"""`mjfleet bench throughput`: env steps per second, where the time goes, and the engine's limit.

Runs in the launching process; `rollouts` measures, in a child for each number of worlds.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from mjfleet.bench.children import run_child
from mjfleet.bench.options import ThroughputOptions
from mjfleet.bench.result import Cell, Result, Spread, Table
from mjfleet.bench.setup import Setup
from mjfleet.errors import UserError

Repeat = Mapping[str, Any]
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


def throughput(setup: Setup, options: ThroughputOptions) -> Result:
    """Measure every number of worlds in turn."""
    jobs = {}
    for num_envs in options.num_envs:
        iterations = options.warmup + options.iterations
        config = setup.config(num_envs, max_iterations=iterations)
        run_dir = setup.scratch / str(num_envs)
        run_dir.mkdir()
        jobs[num_envs] = setup.job(config, run_dir)
    if not jobs:
        raise UserError("--num-envs names no number of worlds.")

    def measure(num_envs: int) -> Repeat:
        command = [
            sys.executable,
            "-m",
            "mjfleet.bench.timed",
            json.dumps(asdict(jobs[num_envs])),
        ]
        child = run_child(command, setup.scratch, {"OMP_WAIT_POLICY": "PASSIVE"})
        samples = json.loads(child.lines[-1][1])[options.warmup :]
        steps = jobs[num_envs].config["agent"]["num_steps_per_env"]
        return {"num_envs": num_envs, **_summary(samples, num_envs, steps)}

    taken = setup.rounds(options.num_envs, measure, lambda n: f"{n} worlds")
    job = jobs[options.num_envs[0]]
    where = f"{job.engine} engine on {setup.device}, CPU threads: {job.threads}"
    return Result(
        name=f"throughput-{setup.found.name}-{job.engine}-{setup.kind}",
        title=f"Throughput of {setup.found.name}: {where}",
        tables=_tables([repeat for _, repeat in taken], options.num_envs),
        notes=NOTES,
        samples=[repeat for _, repeat in taken],
    )


def _summary(samples: Sequence[Mapping[str, Any]], num_envs: int, steps: int) -> dict[str, Any]:
    """One repeat: speeds from the iterations that were left alone, shares from the others."""
    plain = [sample for sample in samples if "parts" not in sample]
    timed = [sample for sample in samples if "parts" in sample]
    in_iteration = num_envs * steps
    collect = Spread.of(sample["collect_seconds"] for sample in plain).median
    limits = {
        name: {
            "steps_per_second": num_envs
            * steps
            / Spread.of(s["limits"][name] for s in plain).median,
            "ratio": Spread.of(s["limits"][name] / s["collect_seconds"] for s in plain).median,
        }
        for name in plain[0]["limits"]
    }
    parts = [_parts(sample["parts"], sample["seconds"]) for sample in timed]
    return {
        "steps_per_second": in_iteration / Spread.of(s["seconds"] for s in plain).median,
        "collecting_steps_per_second": in_iteration / collect,
        "limits": limits,
        "microseconds": {
            part: 1e6 / steps * Spread.of(each[part] for each in parts).median for part in PARTS
        },
        "shares": {
            part: Spread.of(
                each[part] / s["seconds"] for each, s in zip(parts, timed, strict=True)
            ).median
            for part in PARTS
        },
    }


def _parts(seconds: Mapping[str, float], total: float) -> dict[str, float]:
    """Seconds of an iteration, none of them counted twice."""
    parts = {
        "physics": seconds["physics"],
        "rest of the environment": seconds["environment"] - seconds["physics"],
        "policy": seconds["policy"],
        "storage": seconds["storage"],
        "update": seconds["returns"] + seconds["update"],
        "reporting": seconds["reporting"],
    }
    return parts | {"other": total - sum(parts.values())}


def _tables(repeats: Sequence[Repeat], sizes: Sequence[int]) -> list[Table]:
    def row(num_envs: int, *path: str) -> Spread:
        """A figure of all repeats of a number of worlds."""
        values = []
        for repeat in repeats:
            if repeat["num_envs"] == num_envs:
                value: Any = repeat
                for name in path:
                    value = value[name]
                values.append(value)
        return Spread.of(values)

    limits = list(repeats[0]["limits"])
    speeds: list[list[Cell]] = [
        [
            str(n),
            row(n, "steps_per_second"),
            row(n, "collecting_steps_per_second"),
            *(row(n, "limits", name, "steps_per_second") for name in limits),
            *(row(n, "limits", name, "ratio") for name in limits),
        ]
        for n in sizes
    ]
    columns = ["worlds", "end to end", "collecting", *limits]
    columns += [f"collecting / {name}" for name in limits]
    tables = [Table("Env steps per second", columns, speeds)]
    for title, key in (
        ("Microseconds per vector step, one step of all worlds", "microseconds"),
        ("Share of the time", "shares"),
    ):
        rows = [[str(n), *(row(n, key, part) for part in PARTS)] for n in sizes]
        tables.append(Table(title, ["worlds", *PARTS], rows))
    return tables
