"""One run of training as it looks from outside, whoever trains. Runs in the launching process."""

import csv
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mjfleet.bench.children import Finished, run_child
from mjfleet.bench.result import Spread
from mjfleet.bench.setup import Setup
from mjfleet.config import TrainConfig
from mjfleet.errors import WorkerError
from mjfleet.runs.metrics_csv import METRICS_FILE

TRAIN = (sys.executable, "-m", "mjfleet.cli.train")


@dataclass(frozen=True)
class Trained:
    """What a run of training showed."""

    steps_per_second: float
    """Env steps of all workers from the end of the warm-up to the end of the last iteration, by the
    times at which iterations were reported."""
    collect_seconds: float
    """Median of the iterations after the warm-up."""
    learn_seconds: float
    """Likewise."""
    first_iteration_seconds: float
    """From the start of the process to the report of its first iteration."""
    peak_memory: int
    """Bytes: the greatest resident set of one process."""
    iterations: Sequence[dict[str, Any]]
    """Seconds since the start and what was reported, for each."""

    @classmethod
    def of(
        cls, child: Finished, times: Sequence[float], rows: Sequence[dict[str, Any]],
        steps: int, warmup: int,
    ) -> "Trained":  # fmt: skip
        """Of a child that has reported an iteration at each of `times` (s since its start).

        Args:
            child: the process.
            times: when it reported each iteration.
            rows: what it reported of each.
            steps: env steps of an iteration, of all workers.
            warmup: iterations that do not count.
        """
        if not len(times) == len(rows) > 0:
            raise WorkerError(f"{len(times)} iterations were reported, {len(rows)} recorded")
        first = min(warmup, len(times) - 1)  # A run of one iteration is for its first alone.
        elapsed = times[-1] - (times[first - 1] if first else 0.0)
        return cls(
            steps_per_second=(len(times) - first) * steps / elapsed,
            collect_seconds=Spread.of(row["collect_seconds"] for row in rows[first:]).median,
            learn_seconds=Spread.of(row["learn_seconds"] for row in rows[first:]).median,
            first_iteration_seconds=times[0],
            peak_memory=child.peak_memory,
            iterations=[{"seconds": t, **row} for t, row in zip(times, rows, strict=True)],
        )


def train_ours(setup: Setup, config: TrainConfig, **environ: str) -> tuple[Trained, Finished]:
    """Train as users do, by the command `train`."""
    folder = setup.scratch / "logs"
    try:
        command = [*TRAIN, setup.found.name, *_flags(config), "--log-root", str(folder)]
        child = run_child(command, setup.scratch, environ)
        (file,) = folder.glob(f"*/*/{METRICS_FILE}")
        with file.open() as lines:
            rows = [
                {name: float(value) for name, value in row.items() if value}
                for row in csv.DictReader(lines)
            ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    workers = int(rows[0]["world_size"]) if rows else 1
    steps = workers * config.worlds * config.agent.num_steps_per_env
    times = child.times_of("iteration=")
    return Trained.of(child, times, rows, steps, setup.options.warmup), child


def train_theirs(
    setup: Setup, command: Sequence[str], config: TrainConfig
) -> tuple[Trained, list[str]]:
    """Train by a driver, which prints what it found to differ and then each iteration, as JSON."""
    folder = setup.scratch / "theirs"
    folder.mkdir()
    try:
        child = run_child(command, setup.scratch)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    lines = [(seconds, json.loads(line)) for seconds, line in child.lines if line[:2] == '{"']
    notes = [note for _, line in lines for note in line.get("notes", [])]
    reported = [(seconds, line) for seconds, line in lines if "collect_seconds" in line]
    times, rows = [seconds for seconds, _ in reported], [row for _, row in reported]
    steps = config.worlds * config.agent.num_steps_per_env
    return Trained.of(child, times, rows, steps, setup.options.warmup), notes


def _flags(config: TrainConfig) -> list[str]:
    """Flags of `train` for what a benchmark sets."""
    agent = config.agent
    flags = ["--engine", config.engine, "--env.num-envs", config.env.num_envs]
    flags += ["--agent.max-iterations", agent.max_iterations, "--agent.seed", agent.seed]
    if config.cpu_workers is not None:
        flags += ["--cpu-workers", config.cpu_workers]
    else:
        assert not isinstance(config.gpu_ids, str)
        flags += ["--gpu-ids", *(config.gpu_ids or [None])]
    if config.cpu_threads is not None:
        flags += ["--cpu-threads", config.cpu_threads]
    return list(map(str, flags))
