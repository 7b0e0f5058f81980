"""`mjfleet.make`: an environment in this process."""

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import fields
from typing import Any

from mjfleet.api.choose_task import Config, choose_task
from mjfleet.config.dict_conversion import plain
from mjfleet.config.launch_config import LaunchConfig
from mjfleet.env import Env
from mjfleet.env.factory import build_env, on_device
from mjfleet.errors import UserError
from mjfleet.launch.devices import choose_devices
from mjfleet.launch.launch_plan import LaunchPlan, make_plan
from mjfleet.registry import FoundTask

OF_TRAIN = frozenset(field.name for field in fields(LaunchConfig)) - {
    *("gpu_ids", "cpu_threads", "engine", "numa", "deterministic", "total_envs", "total_steps"),
    *("log_root", "tasks_dir", "on_nan"),
}
"""Fields of the configuration that have no meaning for one worker in this process."""


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
    if num_envs is not None:
        changes["env"] = {**plain(changes.get("env") or {}), "num_envs": num_envs}
    changes["gpu_ids"] = _gpu_ids(str(device))
    found, plan = plan_in_process(task, name, config, changes)
    with ExitStack() as stack:
        stack.enter_context(on_device(plan.engine, plan.device))
        env = build_env(found, plan.config, plan.engine, plan.device, plan.threads)
        env.on_close = stack.pop_all()
    return env


def plan_in_process(
    task: str | type,
    name: str | None,
    config: Config | None,
    changes: Mapping[str, Any],
    plan: Callable[..., LaunchPlan] = make_plan,
) -> tuple[FoundTask, LaunchPlan]:
    """Choose device, engine and threads of one worker in this process, as `train` does.

    `plan_size` as the last argument also counts the iterations.

    UserError if a value is not allowed, the configuration needs what this machine lacks, or a field
    is for `train` alone.
    """
    if wrong := [name for name in changes if name in OF_TRAIN]:
        raise UserError(f"{wrong[0]}: only `mjfleet.train` or the command `train` can do that.")
    found, chosen = choose_task(task, name, config, changes)
    devices = choose_devices(chosen, os.environ)
    if len(devices.names) > 1:
        raise UserError("gpu_ids: this process has one worker, so one device.")
    return found, plan(found, chosen, [devices], {})


def _gpu_ids(device: str) -> Any:
    if device in ("auto", "cpu"):
        return {"auto": "auto", "cpu": None}[device]
    kind, _, index = device.partition(":")
    if kind != "cuda" or not (index or "0").isdecimal():
        raise UserError(f"device is {device!r}; it must be `auto`, `cpu` or `cuda:<index>`.")
    return [int(index or 0)]
