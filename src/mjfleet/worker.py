"""What a worker is given, and one worker's life: device, seed, build, train, close.

Importing this imports nothing heavy; `run` does.
"""

import math
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

from mjfleet.config import TrainConfig, from_dict
from mjfleet.errors import UserError
from mjfleet.registry import FoundTask, find_task
from mjfleet.tell import tell

if TYPE_CHECKING:
    from mjfleet.env import Env

CONTROLLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_SIGNAL_SECONDS = 0.5
"""A wrapper such as `uv run` may pass on a signal that the whole group has received already."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a worker needs to know, as plain data; it loads the task again by name."""

    task: str
    task_folder: str
    config: Mapping[str, Any]
    """The resolved TrainConfig, as `mjfleet.config.to_dict` makes it."""
    device: str
    """torch's name of this worker's device."""
    engine: Literal["warp", "native"]
    threads: int
    run_dir: str


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a worker's training ended."""

    iterations: int
    """Iterations that were completed."""
    stopped_by: int | None
    """The signal that ended training early, if one did."""


class Stopped(BaseException):
    """A signal arrived where nothing needs to be finished first."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


class StopRequest:
    """SIGINT, SIGTERM, SIGHUP: raised at once as Stopped, or, while `deferred`, remembered.

    A second signal is raised at once in any case.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._when = -math.inf
        self._deferred = False

    @contextmanager
    def installed(self) -> Iterator["StopRequest"]:
        """Handle the signals inside the block; after one, they are ignored while the run ends."""
        controlled = set(CONTROLLED)
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
            controlled.remove(signal.SIGHUP)  # nohup: the run is to outlive its terminal.
        before = {number: signal.signal(number, self._handle) for number in controlled}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler if self.received is None else signal.SIG_IGN)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let the block finish what it is doing; it asks `received`."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        now = time.monotonic()
        if now - self._when < SAME_SIGNAL_SECONDS:
            return
        self._when = now
        first = self.received is None
        self.received = number
        name = signal.Signals(number).name
        if self._deferred and first:
            tell(f"{name}: stopping after this iteration; once more stops at once")
            return
        tell(f"{name}: stopping at once")
        raise Stopped(number)


def run(job: Job, stop: StopRequest) -> Outcome:
    """Train on one device until the configured iterations are done or a signal arrives."""
    # OpenMP's threads wait for each other by spinning. Where anything else wants a core, they spin
    # through their time slices: updates were seen to take ten times as long. Sleeping costs little.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    worlds = job.config["env"]["num_envs"]
    compiles = "; a model's first run compiles its kernels" if job.engine == "warp" else ""
    tell(f"building {worlds} worlds: {job.engine} engine on {job.device}{compiles}")

    from mjfleet.report.console import Progress
    from mjfleet.report.record import write_record
    from mjfleet.report.sinks import Sinks
    from mjfleet.rl.metrics import IterationMetrics
    from mjfleet.rl.runner import Runner

    found = find_task(job.task, Path(job.task_folder))
    config = from_dict(found.defaults(), job.config)
    agent = config.agent
    run_dir = Path(job.run_dir)
    _seed_everything(agent.seed)
    if job.device != "cpu":
        _bind_gpu(job.device)
    env = _build_env(found, config, job)
    runner = Runner(env, agent, job.device, job.threads, found.load)

    progress = Progress(agent.max_iterations)
    sinks = Sinks(run_dir, agent.logger, agent.experiment_name, job.config)

    def on_iteration(metrics: IterationMetrics) -> None:
        progress.iteration(metrics)
        sinks.write(metrics.row())

    with stop.deferred():
        try:
            runner.train(run_dir / "checkpoints", on_iteration, lambda: stop.received is not None)
        finally:
            iterations = runner.current_learning_iteration
            write_record(run_dir, iterations=iterations)
            sinks.close()
    stopped_by = stop.received if iterations < agent.max_iterations else None
    return Outcome(iterations=iterations, stopped_by=stopped_by)


def _build_env(found: FoundTask, config: TrainConfig, job: Job) -> "Env[Any]":
    """The environment over its simulation, on the job's device."""
    from mjfleet.env import Env
    from mjfleet.sim import make_simulation

    env_class = found.load(found.task.env_class)
    if not (isinstance(env_class, type) and issubclass(env_class, Env)):
        raise UserError(f"task {found.name}: {found.task.env_class} is no subclass of Env.")
    if missing := sorted(env_class.__abstractmethods__):
        raise UserError(f"task {found.name}: {env_class.__name__} lacks {', '.join(missing)}.")
    own_model = env_class.make_model.__func__ is not Env.make_model.__func__
    if not own_model and not hasattr(env_class, "model_file"):
        raise UserError(f"task {found.name}: {env_class.__name__} sets no model_file.")
    sim = make_simulation(
        job.engine,
        env_class.make_model(config.env),
        config.env.num_envs,
        device=job.device,
        num_threads=job.threads,
        nconmax=config.env.nconmax,
        njmax=config.env.njmax,
    )
    env = env_class(config.env, sim, config.agent.seed)
    sizes = {name: group.shape[1] for name, group in env.get_observations().items()}
    for what, declared, built in (
        ("num_actions", found.task.num_actions, env.num_actions),
        ("observation_sizes", found.task.observation_sizes, sizes),
    ):
        if declared is not None and declared != built:
            raise UserError(
                f"task {found.name}: config.py declares {what}={declared}, but the environment "
                f"has {built}."
            )
    found.check_groups(config, sizes)
    return env


def _bind_gpu(device: str) -> None:
    """Make `device` torch's current GPU, before anything is allocated."""
    import torch

    index, count = int(device.removeprefix("cuda:")), torch.cuda.device_count()
    if index >= count:
        raise UserError(
            f"torch {torch.__version__} (built for CUDA {torch.version.cuda}) sees {count} GPUs, "
            f"so not index {index}. Its driver may be too old, CUDA_VISIBLE_DEVICES may name a "
            "GPU that is not there, or several MIG devices, of which a process sees one. "
            "--gpu-ids None trains on the CPU."
        )
    torch.cuda.set_device(device)


def _seed_everything(seed: int) -> None:
    import random

    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
