"""The frozen answer to "who runs where": pure, so that --dry-run prints what a run would do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from mjfleet.config import LaunchConfig, TrainConfig
from mjfleet.errors import UserError
from mjfleet.launch.devices import Devices
from mjfleet.launch.output_relay import choose_log_dir
from mjfleet.registry import FoundTask
from mjfleet.runs.resume_choice import Resume
from mjfleet.worker.rank_environment import Rank

LOCALHOST = "localhost"
"""What torchrunx calls this host, and its workers' log files."""


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
    log_file: Path | None
    """None: it prints into this process's own output, or nowhere."""


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """Everything that is decided before a run starts."""

    task: str
    task_folder: Path
    launcher: Literal["in-process", "torchrunx", "hosts", "outer"]
    """Who starts the workers; hosts: torchrunx on each of them; outer: something else has, such as
    torchrun."""
    world_size: int
    """The number of workers."""
    workers: tuple[PlannedWorker, ...]
    """Those of the hosts that we start workers on, by rank; else those on this host."""
    rank: Rank
    """Which of them this process is, where it is one."""
    backend: Literal["nccl", "gloo"] | None
    """How the workers talk to each other; None: there is only one."""
    engine: Literal["warp", "native"]
    threads: int
    """CPU threads of each worker, on the first host."""
    seed: int
    worlds_per_worker: int | None
    """None: to be found by measuring."""
    steps_per_iteration: int | None
    """Environment steps of all workers in one iteration; None: it depends on the worlds."""
    max_iterations: int
    run_dir: Path
    goes_on: bool
    """Whether the run directory is that of an earlier run, which goes on."""
    checkpoint: Path | None
    """Where training goes on from; None: it begins."""
    is_restart: bool
    """Whether it goes on by itself, after a fault."""
    torchrunx_log_dir: Path | None
    torchrunx_log_dir_source: str
    notes: tuple[str, ...] = ()
    """What the user should be told about these decisions."""


def divide_worlds(config: TrainConfig, world_size: int) -> TrainConfig:
    """The configuration with the worlds of each worker, where the user gave those of all.

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


def make_plan(
    found: FoundTask,
    config: TrainConfig,
    hosts: Sequence[Host],
    environ: Mapping[str, str],
    now: datetime,
    resume: Resume | None = None,
    is_restart: bool = False,
) -> LaunchPlan:
    """Decide everything; a pure function.

    Args:
        found: the task and its folder.
        config: the resolved configuration, with the worlds of each worker.
        hosts: those that workers run on, of which one that is called LOCALHOST is this one alone.
        environ: environment variables.
        now: the time that names the run directory.
        resume: what goes on; None: a new run.
        is_restart: whether it does so by itself.

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
    abroad = hosts[0].name != LOCALHOST
    world_size = outer.world_size if outer else sum(len(host.devices.names) for host in hosts)
    agent = config.agent
    stamp = now.strftime("%Y-%m-%d_%H-%M-%S") + (f"_{agent.run_name}" if agent.run_name else "")
    run_dir = Path(config.log_root) / agent.experiment_name / stamp
    if resume and resume.run_dir:
        run_dir = resume.run_dir
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
    if abroad and config.env.num_envs == "auto":
        raise UserError(
            "--env.num-envs auto measures on one host: give a number, such as the one that `auto` "
            "finds on the slowest of them."
        )
    # What is to be started again needs somebody who outlives it.
    own = world_size > 1 or config.max_restarts > 0
    launcher = "hosts" if abroad else "torchrunx" if own else "in-process"
    launcher = "outer" if outer else launcher
    log_dir, source = choose_log_dir(config, environ, run_dir)
    files = log_dir / now.isoformat(timespec="seconds") if log_dir else None
    first = outer.rank - outer.local_rank if outer else 0
    files = files if launcher in ("torchrunx", "hosts") else None
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
                    seed=agent.seed + rank,
                    threads=threads,
                    log_file=files / f"{host.name}[{index}].log" if files else None,
                )
            )
    worlds = None if config.env.num_envs == "auto" else config.num_envs
    return LaunchPlan(
        task=found.name,
        task_folder=found.folder,
        launcher=launcher,
        world_size=world_size,
        workers=tuple(workers),
        rank=outer or Rank(),
        backend=choose_backend(config, hosts[0].devices) if world_size > 1 else None,
        engine=_engine(config, on_gpu),
        threads=workers[0].threads,
        seed=agent.seed,
        worlds_per_worker=worlds,
        steps_per_iteration=worlds and world_size * worlds * agent.num_steps_per_env,
        max_iterations=agent.max_iterations,
        run_dir=run_dir,
        goes_on=bool(resume and resume.run_dir),
        checkpoint=resume.checkpoint if resume else None,
        is_restart=is_restart,
        torchrunx_log_dir=log_dir,
        torchrunx_log_dir_source=source,
        notes=(*_notes(config, hosts, world_size), *(resume.notes if resume else ())),
    )


def _threads(config: TrainConfig, cores: int, workers: int) -> int:
    """Threads of each of this host's workers: together no more than there are cores."""
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
    """How several workers on these devices talk to each other.

    Raises:
        UserError: NCCL was asked for on the CPU.
    """
    if config.backend == "nccl" and not devices.indices:
        raise UserError("--backend nccl connects GPUs only: on the CPU use gloo, or auto.")
    if config.backend == "auto":
        return "nccl" if devices.indices else "gloo"
    return config.backend


def _notes(config: TrainConfig, hosts: Sequence[Host], world_size: int) -> tuple[str, ...]:
    notes = []
    if hosts[0].devices.note:
        notes.append(f"{hosts[0].devices.note}: training on the CPU")
    if config.total_envs is not None:
        notes.append(
            f"--total-envs {config.total_envs}: {config.num_envs} worlds for each of "
            f"{world_size} workers"
        )
    for host in hosts:
        workers = len(host.devices.names)
        if workers > host.cores:
            notes.append(f"{workers} workers share {host.cores} CPU cores and will be slow")
    return tuple(notes)
