"""The frozen answer to "who runs where": pure, so that --dry-run prints what a run would do."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from mjfleet.config import TrainConfig
from mjfleet.errors import UserError
from mjfleet.launch.devices import Devices
from mjfleet.registry import FoundTask

LOG_DIR_VARIABLE = "TORCHRUNX_LOG_DIR"


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """Everything that is decided before a run starts."""

    task: str
    task_folder: Path
    mode: Literal["cpu", "single-gpu"]
    devices: tuple[str, ...]
    """torch's device names, one per worker: "cuda:0", or "cpu"."""
    physical_devices: tuple[str, ...]
    """What the driver calls those GPUs; empty on the CPU."""
    engine: Literal["warp", "native"]
    threads: int
    """CPU threads of each worker."""
    seed: int
    worlds_per_worker: int
    steps_per_iteration: int
    """Environment steps of all workers in one iteration."""
    max_iterations: int
    run_dir: Path
    torchrunx_log_dir: Path | None
    torchrunx_log_dir_source: str
    note: str = ""
    """What the user should be told about the choice of devices."""

    @property
    def world_size(self) -> int:
        """The number of workers."""
        return len(self.devices)


def make_plan(
    found: FoundTask,
    config: TrainConfig,
    devices: Devices,
    environ: Mapping[str, str],
    cores: int,
    now: datetime,
) -> LaunchPlan:
    """Decide everything; a pure function.

    Args:
        found: the task and its folder.
        config: the resolved configuration.
        devices: the selected devices of this host.
        environ: environment variables.
        cores: CPU cores that this process may use.
        now: the time that names the run directory.

    Raises:
        UserError: several GPUs, more threads than cores, or an engine that the device lacks.
    """
    if len(devices.indices) > 1:
        raise UserError(
            f"--gpu-ids selects {len(devices.indices)} GPUs; this version trains on one. "
            f"Choose one, such as --gpu-ids {devices.indices[0]}."
        )
    if environ.get("WORLD_SIZE", "1") != "1":
        raise UserError(
            f"WORLD_SIZE is {environ['WORLD_SIZE']}: this version trains on one device; start it "
            "without torchrun."
        )
    if found.task.observation_sizes is not None:
        found.check_groups(config, found.task.observation_sizes)
    on_gpu = bool(devices.indices)
    if on_gpu and config.engine == "native":
        raise UserError("--engine native runs on the CPU only: add --gpu-ids None, or use warp.")
    if config.cpu_threads is not None and config.cpu_threads > cores:
        raise UserError(
            f"--cpu-threads is {config.cpu_threads}; it must be at most {cores}, the cores that "
            "this process may use."
        )
    agent = config.agent
    stamp = now.strftime("%Y-%m-%d_%H-%M-%S") + (f"_{agent.run_name}" if agent.run_name else "")
    run_dir = Path(config.log_root) / agent.experiment_name / stamp
    log_dir, source = _torchrunx_log_dir(config, environ, run_dir)
    return LaunchPlan(
        task=found.name,
        task_folder=found.folder,
        mode="single-gpu" if on_gpu else "cpu",
        devices=tuple(f"cuda:{index}" for index in devices.indices) or ("cpu",),
        physical_devices=devices.physical,
        engine=_engine(config, on_gpu),
        threads=config.cpu_threads or cores,
        seed=agent.seed,
        worlds_per_worker=config.env.num_envs,
        steps_per_iteration=config.env.num_envs * agent.num_steps_per_env,
        max_iterations=agent.max_iterations,
        run_dir=run_dir,
        torchrunx_log_dir=log_dir,
        torchrunx_log_dir_source=source,
        note=f"{devices.note}: training on the CPU" if devices.note else "",
    )


def _engine(config: TrainConfig, on_gpu: bool) -> Literal["warp", "native"]:
    if config.engine == "auto":
        return "warp" if on_gpu else "native"
    return config.engine


def _torchrunx_log_dir(
    config: TrainConfig, environ: Mapping[str, str], run_dir: Path
) -> tuple[Path | None, str]:
    """Where the workers' logs go, and which of the three places said so; empty means nowhere."""
    if LOG_DIR_VARIABLE in environ:
        chosen, source = environ[LOG_DIR_VARIABLE], f"environment variable {LOG_DIR_VARIABLE}"
    elif config.torchrunx_log_dir is not None:
        chosen, source = config.torchrunx_log_dir, "--torchrunx-log-dir"
    else:
        return run_dir / "torchrunx", "default"
    return (Path(chosen) if chosen else None), source
