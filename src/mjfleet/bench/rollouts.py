"""Training that is timed in parts, and in turn with it the engine's limit. Runs in a child process.

Environment and runner are built as a worker builds them.
"""

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mjfleet.bench.raw import RawEngine
from mjfleet.config import from_dict
from mjfleet.env.factory import build_env, on_device
from mjfleet.loggers.console_logger import Progress
from mjfleet.loggers.iteration_metrics import IterationMetrics
from mjfleet.loggers.logger_group import LoggerGroup
from mjfleet.registry import find_task
from mjfleet.rl.checkpoint_files import seed_everything
from mjfleet.rl.cuda_graphs import GraphedRollout
from mjfleet.rl.runner import Runner
from mjfleet.worker.worker_args import WorkerArgs


class Stopwatch:
    """Times calls by name, while it is on: to wait for a GPU after each would slow all down."""

    def __init__(self, device: str) -> None:
        self._device = device
        self.is_on = False
        self.seconds: dict[str, float] = defaultdict(float)

    def now(self) -> float:
        """The time at which the device has done all that it was given (s)."""
        if self._device != "cpu":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def watch(self, part: str, owner: Any, method: str) -> None:
        """Count the time of every call of a method as that of `part`."""
        call = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            if not self.is_on:
                return call(*args, **kwargs)
            start = self.now()
            result = call(*args, **kwargs)
            self.seconds[part] += self.now() - start
            return result

        setattr(owner, method, timed)


class Measurement:
    """Called after every iteration: reports as a run does, and has the bare engine step."""

    def __init__(self, runner: Runner, raw: RawEngine, job: WorkerArgs, watch: Stopwatch) -> None:
        self._runner, self._raw, self._watch = runner, raw, watch
        agent = runner.agent
        self._progress = Progress(agent.max_iterations)
        self.loggers = LoggerGroup(Path(job.run_dir), agent, job.config)
        self.samples: list[dict[str, Any]] = []
        self.start = watch.now()

    def __call__(self, metrics: IterationMetrics) -> None:
        """Note an iteration; every second one is timed in parts."""
        watch = self._watch
        learned = watch.now()
        self._progress.iteration(metrics)
        self.loggers.write(metrics.row())
        end = watch.now()
        sample: dict[str, Any] = {
            "seconds": end - self.start,
            "collect_seconds": metrics.collect_seconds,
            "learn_seconds": metrics.learn_seconds,
        }
        if watch.is_on:
            sample["parts"] = dict(watch.seconds) | {"reporting": end - learned}
        watch.is_on = False
        watch.seconds.clear()
        sample["limits"] = {name: self._time(step) for name, step in self._raw.limits.items()}
        self.samples.append(sample)
        watch.is_on = len(self.samples) % 2 == 1
        if isinstance(self._runner.rollout, GraphedRollout):
            self._runner.rollout.by_calls = watch.is_on
        self.start = watch.now()

    def _time(self, step: Callable[[], None]) -> float:
        """Seconds for as many vector steps as a rollout has."""
        self._raw.follow()
        start = self._watch.now()
        for _ in range(self._runner.agent.num_steps_per_env):
            step()
        return self._watch.now() - start


def measure(argument: str) -> None:
    """Train the job of a request, and print the samples of all iterations as a line of JSON."""
    output = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # What training tells has no reader.
    job = WorkerArgs(**json.loads(argument))
    device = job.devices[0]
    found = find_task(job.task, Path(job.task_folder))
    config = from_dict(found.defaults(), job.config)
    seed_everything(config.agent.seed)
    with on_device(job.engine, device):
        env = build_env(found, config, job.engine, device, job.threads)
        runner = Runner(env, config.agent, device, job.threads, found.load)
        watch = Stopwatch(device)
        watched = {
            "physics": (env.sim, "step"),
            "environment": (env, "step"),
            "policy": (runner.alg, "act"),
            "storage": (runner.alg, "process_env_step"),
            "returns": (runner.alg, "compute_returns"),
            "update": (runner.alg, "update"),
        }
        for part, (owner, method) in watched.items():
            watch.watch(part, owner, method)
        measurement = Measurement(runner, RawEngine(job, env.sim, env.cfg.decimation), job, watch)
        runner.train(measurement, lambda: None)
        measurement.loggers.close()
    timed = [sample["parts"] for sample in measurement.samples if "parts" in sample]
    for part in watched:
        assert all(part in parts for parts in timed), f"{part} was never called"
    os.write(output, json.dumps(measurement.samples).encode() + b"\n")
