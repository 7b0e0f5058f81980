"""`mjfleet.make` and `mjfleet.iterate`: an environment, and the training loop, in this process."""

import logging
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from mjfleet.api.choose_task import Config, choose_task
from mjfleet.config import EnvConfig, TrainConfig
from mjfleet.config.launch_config import LaunchConfig
from mjfleet.config.validation import check_kind
from mjfleet.env import Env
from mjfleet.env.factory import build_env, on_device
from mjfleet.env.random_numbers import seed_everything
from mjfleet.errors import UserError
from mjfleet.launch.devices import Devices, choose_devices
from mjfleet.launch.launch_plan import make_plan
from mjfleet.registry import FoundTask
from mjfleet.rl.checkpoints.contents import Checkpointer
from mjfleet.rl.checkpoints.files import read_checkpoint
from mjfleet.rl.checkpoints.initial_networks import take_networks
from mjfleet.rl.runner import Runner
from mjfleet.runs.find_run import refuse_log_root
from mjfleet.runs.named_run import networks_of, with_teacher
from mjfleet.runs.start import NEW
from mjfleet.utils.atomic_write import write_atomically
from mjfleet.worker.near_cores import use_near_cores
from mjfleet.worker.torch_settings import apply_settings

logger = logging.getLogger(__name__)

OF_TRAIN = frozenset(field.name for field in fields(LaunchConfig)) - {
    *("gpu_ids", "cpu_threads", "engine", "numa", "deterministic", "total_envs", "total_steps"),
    *("log_root", "tasks_dir", "on_nan", "init_from"),
}
"""Fields of the configuration that have no meaning for one worker in this process."""
OF_LEARNING = frozenset({"init_from", "log_root", "numa", "total_steps"})
"""Fields of TrainConfig that do nothing for an environment alone."""


def make(
    task: str | type,
    *,
    num_envs: int | None = None,
    device: str = "auto",
    name: str | None = None,
    config: Config | None = None,
    **changes: Any,
) -> Env[Any]:
    """Build an environment, whose contract docs/tasks.md describes; close it, or use it by `with`.

    Args:
        task, name, config: as for `mjfleet.train`.
        num_envs: environments; None: as many as the task has.
        device: `cpu`, `cuda:0` and so on, or `auto`: GPU 0, else the CPU. One process has the
            environments of one device.
        changes: fields of TrainConfig: `engine="native"`, `env={"episode_seconds": 5}`.

    Raises:
        UserError: the task, the device or a value is not known.
    """
    if "gpu_ids" in changes:
        raise UserError("gpu_ids: `device` says where `make` builds the environments.")
    if wrong := [name for name in changes if name in OF_LEARNING]:
        raise UserError(f"{wrong[0]}: nothing is learned by an environment alone.")
    if num_envs is not None:
        env = changes.setdefault("env", {})
        if isinstance(env, EnvConfig):
            changes["env"] = replace(env, num_envs=num_envs)
        elif isinstance(env, Mapping):
            changes["env"] = {**env, "num_envs": num_envs}
    changes["gpu_ids"] = _gpu_ids(str(device))
    found, chosen, devices = _choose(task, name, config, changes)
    plan = make_plan(found, chosen, devices)
    with ExitStack() as stack:
        stack.enter_context(on_device(plan.engine, plan.device))
        env = build_env(found, plan.config, plan.engine, plan.device, plan.threads)
        env.on_close = stack.pop_all()
    return env


@dataclass(frozen=True)
class Iteration:
    """An iteration that is done, and what trains: change it, and the next iteration uses that."""

    number: int
    """Iterations done, this one included."""
    metrics: dict[str, float | int | None]
    """The columns of metrics.csv."""
    runner: Runner
    """Its `alg` is the algorithm. PPO is rsl_rl's: `alg.entropy_coef`, `alg.clip_param`, ..."""
    checkpointer: Checkpointer
    """What `save` writes."""

    @property
    def env(self) -> Env[Any]:
        """The environment."""
        return self.runner.env

    def set_learning_rate(self, value: float) -> None:
        """Set the learning rate of all parameters, from which an adaptive schedule continues.

        UserError unless it is at least 0 and finite.
        """
        what, allowed = "the learning rate", "at least 0 and finite"
        check_kind(what, value, (int, float), allowed)
        if not 0.0 <= value < math.inf:
            raise UserError(f"{what} is {value}; it must be {allowed}.")
        self.runner.alg.set_learning_rate(value)

    def save(self, path: str | Path) -> Path:
        """Write a checkpoint; return its path.

        `train --resume` and `play --resume` take it, and `mjfleet.train(task, init_from=path)` if
        the task is a class.

        Raises:
            UserError: the file cannot be written.
        """
        check_kind("the checkpoint's path", path, (str, Path), "the name of a file")
        data = self.checkpointer.packed()
        try:
            write_atomically(Path(path), lambda file: file.write(data))
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}.") from None
        return Path(path)


def iterate(
    task: str | type, *, name: str | None = None, config: Config | None = None, **changes: Any
) -> Iterator[Iteration]:
    """Train with one worker in this process; yield each iteration. Leave the loop to stop.

    It writes no run directory: `Iteration.save` keeps a policy, `Iteration.metrics` the numbers.
    torch keeps the settings of `agent.tf32` and `deterministic`, and the process the cores of
    `numa`.

    Args:
        task, name, config, changes: as for `mjfleet.train`.

    Raises:
        UserError: a value is not allowed, or the configuration needs what this machine lacks.
        DivergedError: a state, observation, reward or loss is not finite.
    """
    with ExitStack() as stack:
        found, chosen, devices = _choose(task, name, config, changes)
        refuse_log_root(chosen.log_root, chosen.agent.experiment_name)
        chosen = with_teacher(chosen)
        networks = Path(networks_of(chosen).checkpoint) if chosen.init_from else None
        plan = make_plan(found, chosen, devices, start=NEW)
        device, config, threads = plan.device, plan.config, plan.threads
        if config.numa == "auto":
            threads = use_near_cores(plan.hosts[0].physical, 0, threads)
        seed_everything(config.agent.seed)
        stack.enter_context(on_device(plan.engine, device))
        apply_settings(config)
        size = config.agent.algorithm.envs_per_group
        env = build_env(found, config, plan.engine, device, threads, group_size=size)
        stack.callback(torch.set_num_threads, torch.get_num_threads())  # Training changes it.
        runner = Runner(env, config.agent, device, threads, found.load)
        if networks:
            take_networks(runner, networks, read_checkpoint(networks), str(networks))
        runner.alg.begin()
        checkpointer = Checkpointer(runner, found.name, None, keep=None)
        for row in runner.iterations(lambda: None):
            yield Iteration(runner.current_learning_iteration, row, runner, checkpointer)


def _choose(
    task: str | type, name: str | None, config: Config | None, changes: Mapping[str, Any]
) -> tuple[FoundTask, TrainConfig, list[Devices]]:
    """Return task, configuration and device of one worker in this process, as `train` does.

    UserError if a value is not allowed, or a field is for `train` alone.
    """
    if wrong := [name for name in changes if name in OF_TRAIN]:
        raise UserError(f"{wrong[0]}: only `mjfleet.train` or the command `train` can do that.")
    check_waiting()
    found, chosen = choose_task(task, name, config, changes)
    devices = choose_devices(chosen, os.environ)
    if len(devices.names) > 1:
        raise UserError("gpu_ids: this process has one worker, so one device.")
    return found, chosen, [devices]


@cache
def check_waiting() -> None:
    """Warn once if torch has been imported without OMP_WAIT_POLICY, which it has read by then."""
    if "OMP_WAIT_POLICY" not in os.environ:
        logger.warning(
            "torch was imported before mjfleet, so its threads spin while they wait. Beside other "
            "programs this is several times as slow: import mjfleet first, or set "
            "OMP_WAIT_POLICY=PASSIVE before Python starts."
        )


def _gpu_ids(device: str) -> Any:
    if device in ("auto", "cpu"):
        return {"auto": "auto", "cpu": None}[device]
    kind, _, index = device.partition(":")
    if kind != "cuda" or not (index or "0").isdecimal():
        raise UserError(f"device is {device!r}; it must be `auto`, `cpu` or `cuda:<index>`.")
    return [int(index or 0)]
