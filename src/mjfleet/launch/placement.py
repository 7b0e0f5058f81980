"""Which worker runs where: pure functions of configuration, hosts and environment.

Run in the launcher, and for commands that need one worker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mjfleet.config import LaunchConfig, TrainConfig, to_dict
from mjfleet.errors import UserError
from mjfleet.launch.devices import Devices
from mjfleet.launch.host_names import LOCALHOST
from mjfleet.registry import FoundTask
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.worker_args import WorkerArgs


@dataclass(frozen=True, kw_only=True)
class Host:
    """A host, and what of it a run uses."""

    name: str = LOCALHOST
    devices: Devices
    """One per worker."""
    cores: int
    """CPU cores that a process there may use."""


@dataclass(frozen=True, kw_only=True)
class PlannedWorker:
    """One worker: who it is and where it runs."""

    rank: int
    host: str
    device: str
    """torch's name: "cuda:0", or "cpu"."""
    physical: str
    """What the driver calls that GPU; empty on the CPU."""
    seed: int
    threads: int
    log_file: Path | None = None
    """None: it prints into the launcher's own output, or nowhere."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Who runs where: known before the number of environments and the run directory are."""

    task: str
    task_folder: Path
    launcher: Literal["in-process", "torchrunx", "hosts", "outer"]
    """Who starts the workers. torchrunx: a host agent on this host, hosts: one on each of several;
    outer: something else has started them, such as torchrun."""
    world_size: int
    """The number of workers."""
    workers: tuple[PlannedWorker, ...]
    """All of the hosts that we start workers on, by rank; otherwise those on this host."""
    rank: Rank
    """This process's place among the workers, if it is one."""
    backend: Literal["nccl", "gloo"] | None
    """torch.distributed's backend; None: there is only one worker."""
    engine: Literal["warp", "native"]
    threads: int
    """CPU threads of each worker on the first host."""


def place_workers(
    found: FoundTask, config: TrainConfig, hosts: Sequence[Host], environ: Mapping[str, str]
) -> Placement:
    """Decide which worker runs where.

    Args:
        found: the task and its folder.
        config: the resolved configuration.
        hosts: those that workers run on; one that is called LOCALHOST is this one alone.
        environ: environment variables.

    Raises:
        UserError: devices, threads, engine or backend do not fit each other.
    """
    outer = Rank.from_environ(environ)
    if found.task.observation_sizes is not None:
        found.check_groups(config, found.task.observation_sizes)
    on_gpu = bool(hosts[0].devices.indices)
    without = [host.name for host in hosts if not host.devices.indices]
    if on_gpu and without:
        raise UserError(
            f"{hosts[0].name} has GPUs to train on, but not {', '.join(without)}: leave it out, or "
            "train on all CPUs with --gpu-ids None."
        )
    if on_gpu and config.engine == "native":
        raise UserError("--engine native runs on the CPU only: add --gpu-ids None, or use warp.")
    is_local = hosts[0].name == LOCALHOST
    if outer and config.max_restarts:
        raise UserError(
            f"--max-restarts is {config.max_restarts}, but something else has started these "
            "workers, such as torchrun, and has to start them again."
        )
    if outer and config.env.num_envs == "auto":
        raise UserError(
            "--env.num-envs auto measures before workers are started, but something else has "
            "started these, such as torchrun: give a number, such as the one that `auto` finds "
            "without it."
        )
    if not is_local and config.env.num_envs == "auto":
        raise UserError(
            "--env.num-envs auto measures on one host: give a number, such as the one that `auto` "
            "finds on the slowest of them."
        )
    first = outer.rank - outer.local_rank if outer else 0
    workers: list[PlannedWorker] = []
    for host in hosts:
        names = host.devices.names
        threads = _threads(config, host.cores, len(names))
        for index, name in enumerate(names):
            rank = first + len(workers)
            workers.append(
                PlannedWorker(
                    rank=rank,
                    host=host.name,
                    device=name,
                    physical=host.devices.physical[index] if host.devices.physical else "",
                    seed=config.agent.seed + rank,
                    threads=threads,
                )
            )
    world_size = outer.world_size if outer else len(workers)
    # A worker that is to be started again needs a process that outlives it.
    needs_agent = world_size > 1 or config.max_restarts > 0
    launcher = "outer" if outer else "torchrunx" if needs_agent else "in-process"
    return Placement(
        task=found.name,
        task_folder=found.folder,
        launcher=launcher if is_local else "hosts",
        world_size=world_size,
        workers=tuple(workers),
        rank=outer or Rank(),
        backend=choose_backend(config, hosts[0].devices) if world_size > 1 else None,
        engine=_engine(config, on_gpu),
        threads=workers[0].threads,
    )


def make_worker_args(
    placement: Placement, config: TrainConfig, run_dir: str = "", checkpoint: Path | None = None
) -> WorkerArgs:
    """Return what all workers need to know."""
    return WorkerArgs(
        task=placement.task,
        task_folder=str(placement.task_folder),
        config=to_dict(config),
        devices=tuple(worker.device for worker in placement.workers),
        engine=placement.engine,
        threads=placement.threads,
        run_dir=run_dir,
        backend=placement.backend,
        local=placement.launcher != "outer",
        checkpoint=str(checkpoint) if checkpoint else None,
    )


def divide_envs(config: TrainConfig, world_size: int) -> TrainConfig:
    """Return the configuration with the environments of each worker, if those of all were given.

    Raises:
        UserError: they cannot be divided, or those of an evaluation cannot.
    """
    if config.eval_interval is not None and config.eval_envs < world_size:
        raise UserError(
            f"--eval-envs is {config.eval_envs}; it must be at least {world_size}, the number of "
            "workers, which share them."
        )
    total = config.total_envs
    if total is None:
        return config
    each, rest = divmod(total, world_size)
    if rest or not each:
        near = [n for n in (each * world_size, (each + 1) * world_size) if n]
        raise UserError(
            f"--total-envs is {total}; it must be a multiple of {world_size}, the number of "
            f"workers, such as {' or '.join(map(str, near))}."
        )
    return config.with_num_envs(each)


def _threads(config: TrainConfig, cores: int, workers: int) -> int:
    """Return the threads of each of a host's workers: together no more than it has cores."""
    wanted = config.cpu_threads
    if wanted is None:
        return max(1, cores // workers)
    if wanted > cores:
        raise UserError(
            f"--cpu-threads is {wanted}; it must be at most {cores}, the cores that this process "
            "may use."
        )
    if wanted < workers:
        raise UserError(
            f"--cpu-threads is {wanted}; it must be at least {workers}, one for each worker."
        )
    return wanted // workers


def _engine(config: TrainConfig, on_gpu: bool) -> Literal["warp", "native"]:
    if config.engine == "auto":
        return "warp" if on_gpu else "native"
    return config.engine


def choose_backend(config: LaunchConfig, devices: Devices) -> Literal["nccl", "gloo"]:
    """Return the backend by which several workers on these devices communicate.

    Raises:
        UserError: NCCL was asked for on the CPU.
    """
    if config.backend == "nccl" and not devices.indices:
        raise UserError("--backend nccl connects GPUs only: on the CPU use gloo, or auto.")
    if config.backend == "auto":
        return "nccl" if devices.indices else "gloo"
    return config.backend
