"""The launch plan, which --dry-run prints: which worker runs where, with what.

It reads one file, and that for --total-steps alone: the metrics of the run that continues.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from mjfleet.config import TrainConfig, to_dict
from mjfleet.errors import UserError
from mjfleet.launch.devices import Devices, choose_backend
from mjfleet.launch.host_names import LOCALHOST
from mjfleet.registry import FoundTask
from mjfleet.runs.checkpoints import counted
from mjfleet.runs.metrics_csv import METRICS_FILE, read_rows, value
from mjfleet.runs.start import NEW, Start
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.worker_args import WorkerArgs

LAUNCHERS = {
    "in-process": "in this process",
    "torchrunx": "started by torchrunx",
    "hosts": "started by torchrunx on each host",
    "outer": "started by torchrun or a scheduler",
}
"""Who starts the workers, by name in run.json; the first two are for this host alone."""
LOG_DIR_VARIABLE = "TORCHRUNX_LOG_DIR"


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """Everything that is decided before a run starts; `name_files` completes it."""

    task: str
    task_folder: Path
    config: TrainConfig  # With the environments of each worker.
    launcher: str  # One of LAUNCHERS.
    world_size: int
    hosts: tuple[Devices, ...]  # The first one has rank 0. With `outer`, this host alone.
    rank: Rank  # This process's place among the workers, if it is one.
    backend: Literal["nccl", "gloo"] | None  # torch.distributed's; None: there is only one worker.
    engine: Literal["warp", "native"]
    start: Start
    notes: tuple[str, ...]  # About these decisions, for the user.
    run_dir: Path
    task_hash: str = ""  # Hash of the task's code, once the run directory has a copy.
    attempt: str = ""  # The attempt's random name, likewise.
    logs: Path | None = None  # The folder of this attempt's logs; None: there are none.

    @property
    def continues(self) -> bool:
        """Whether the run directory is that of an earlier run, which continues."""
        return self.start.run_dir is not None

    @property
    def checkpoint(self) -> Path | None:
        """Where training continues from; None: it begins."""
        return self.start.checkpoint

    @property
    def has_host_agents(self) -> bool:
        return self.launcher in ("torchrunx", "hosts")

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of all workers in one iteration."""
        return self.world_size * self.config.env.num_envs * self.config.agent.num_steps_per_env

    @property
    def device(self) -> str:
        """torch's name of the first worker's device."""
        return self.hosts[0].names[0]

    @property
    def threads(self) -> int:
        """CPU threads of each worker on the first host."""
        return self.hosts[0].threads

    def worker_args(self, node: int = 0) -> WorkerArgs:
        """Return what the workers of a host need to know.

        Paths are absolute: a task's code may change the working directory.
        """
        return WorkerArgs(
            task=self.task,
            task_folder=str(self.task_folder),
            config=to_dict(self.config),
            devices=self.hosts[node].names,
            gpus=self.hosts[node].physical,
            engine=self.engine,
            threads=self.hosts[node].threads,
            run_dir=str(self.run_dir.absolute()),
            backend=self.backend,
            local=self.launcher != "outer",
            checkpoint=str(self.checkpoint.absolute()) if self.checkpoint else None,
            continues=self.continues,
            task_hash=self.task_hash,
            attempt=self.attempt,
            node=node,
            first_rank=sum(len(host.names) for host in self.hosts[:node]),
            world_size=self.world_size,
        )

    def workers(self) -> list[dict[str, Any]]:
        """Return rank, host, device and more of all workers that we start, or of this host's."""
        found: list[dict[str, Any]] = []
        first = self.rank.rank - self.rank.local_rank
        for host in self.hosts:
            pairs = zip_longest(host.names, host.physical, fillvalue="")
            for local_rank, (device, physical) in enumerate(pairs):
                rank = first + len(found)
                worker = {"rank": rank, "host": host.host, "device": device, "physical": physical}
                worker["seed"] = self.config.agent.seed + rank
                worker["threads"] = host.threads
                worker["log_file"] = self.logs and self.logs / log_name(host.host, local_rank)
                found.append(worker)
        return found

    def record(self) -> dict[str, Any]:
        """Return the plan's entries in run.json."""
        agent = self.config.agent
        left_out = ("config", "task_hash", "attempt", "start", "hosts")  # Recorded elsewhere.
        return {name: value for name, value in asdict(self).items() if name not in left_out} | {
            "continues": self.continues,
            "checkpoint": self.checkpoint,
            "workers": self.workers(),
            "threads": self.threads,
            "seed": agent.seed,
            "max_iterations": agent.max_iterations,
            "envs_per_worker": self.config.env.num_envs,
            "steps_per_iteration": self.steps_per_iteration,
        }


def make_plan(
    found: FoundTask,
    config: TrainConfig,
    hosts: Sequence[Devices],
    outer: Rank | None = None,
    start: Start | None = None,
) -> LaunchPlan:
    """Decide which worker runs where, with what, and for how many iterations; it names no files.

    One host that is called LOCALHOST is this one alone. `outer` is the place of this process, if
    something else has started the workers. `start` is where training starts; None: nothing is
    trained.

    Raises:
        UserError: devices, threads, environments, engine or backend do not fit each other, or a
            worker's rollouts cannot be learned from.
    """
    if found.task.observation_sizes is not None:
        found.check_groups(config, found.task.observation_sizes)
    _refuse_contradictions(config, hosts, outer)
    first = hosts[0]
    world_size = outer.world_size if outer else sum(len(host.names) for host in hosts)
    # A worker that is to be started again needs a process that outlives it.
    needs_agent = world_size > 1 or config.max_restarts > 0
    launcher = "outer" if outer else "torchrunx" if needs_agent else "in-process"
    engine = "warp" if first.indices else "native"
    config, begun = _divide_envs(config, world_size), start or NEW
    plan = LaunchPlan(
        task=found.name,
        task_folder=found.folder,
        config=config,
        launcher=launcher if first.host == LOCALHOST else "hosts",
        world_size=world_size,
        hosts=tuple(replace(host, threads=_threads(config, host)) for host in hosts),
        rank=outer or Rank(),
        backend=choose_backend(config, first) if world_size > 1 else None,
        engine=engine if config.engine == "auto" else config.engine,
        start=begun,
        notes=(*_notes(config, hosts, world_size), *begun.notes),
        run_dir=begun.run_dir or Path(),
    )
    if start is not None:
        config.check_rollouts()
        if config.total_steps is not None:
            plan = _limit_steps(plan, config.total_steps)
    agent = plan.config.agent
    length = config.total_steps or agent.max_iterations * plan.steps_per_iteration
    agent = replace(agent, algorithm=agent.algorithm.for_length(length))
    return replace(plan, config=replace(plan.config, agent=agent))


def name_files(plan: LaunchPlan, environ: Mapping[str, str], when: datetime) -> LaunchPlan:
    """Return the plan with run directory, unless it continues one, and logs named by a time.

    Logs are below the folder of LOG_DIR_VARIABLE, of the flag, or of the run.
    """
    run_dir = plan.run_dir if plan.continues else new_folder(plan.config, when)
    # An empty variable or flag asks for no logs.
    folder = environ.get(LOG_DIR_VARIABLE, plan.config.torchrunx_log_dir)
    folder = run_dir / "torchrunx" if folder is None else folder
    has_logs = folder and plan.has_host_agents
    logs = Path(folder, when.isoformat(timespec="seconds")) if has_logs else None
    return replace(plan, run_dir=run_dir, logs=logs)


def log_name(host: str, local_rank: int = 0) -> str:
    """Return the name of a worker's log file."""
    return f"{host}[{local_rank}].log"


def new_folder(config: TrainConfig, when: datetime) -> Path:
    """Return the folder of a new run, or of a group: --run-dir, or one that is named by a time."""
    suffix = f"_{config.agent.run_name}" if config.agent.run_name else ""
    name = when.strftime("%Y-%m-%d_%H-%M-%S") + suffix
    return Path(config.run_dir or Path(config.log_root, config.agent.experiment_name, name))


def describe_size(plan: LaunchPlan) -> dict[str, Any]:
    """Return how much is trained, and by whom, as --dry-run prints it."""
    talk = f", which talk by {plan.backend}" if plan.backend else ""
    num_envs = plan.config.env.num_envs
    return {
        "workers": f"{plan.world_size}, {LAUNCHERS[plan.launcher]}{talk}",
        "engine": plan.engine,
        "environments": f"{num_envs} per worker, {num_envs * plan.world_size} in total",
        "steps per iteration": plan.steps_per_iteration,
        "iterations": plan.config.agent.max_iterations,
    }


def describe(plan: LaunchPlan) -> str:
    """Return the plan as --dry-run prints it."""
    new = "" if plan.continues else " (new run)"
    lines = {
        "task": f"{plan.task} ({plan.task_folder})",
        **describe_size(plan),
        "run directory": f"{plan.run_dir}{' (resumed)' if plan.continues else ''}",
        "checkpoint": f"{plan.checkpoint or 'none'}{new}",
    }
    table = [("rank", "host", "device", "seed", "threads", "log file")]
    no_file = "none" if plan.has_host_agents else "none (printed here)"
    for worker in plan.workers():
        rank, host, device, physical, seed, threads, log_file = worker.values()
        device = f"{device} (the machine's {physical})" if physical else device
        table.append((str(rank), host, device, str(seed), str(threads), str(log_file or no_file)))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rows = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
    plain = [f"{name + ':':<25}{value}" for name, value in lines.items()]
    return "\n".join([*plain, "", *rows, *(["", *plan.notes] if plan.notes else [])])


def _refuse_contradictions(
    config: TrainConfig, hosts: Sequence[Devices], outer: Rank | None
) -> None:
    first, *_ = hosts
    without = [devices.host for devices in hosts if not devices.indices]
    if first.indices and without:
        raise UserError(
            f"{first.host} has GPUs to train on, {', '.join(without)} has none: leave out hosts "
            "without GPUs, or train on the CPUs of all with --gpu-ids None."
        )
    if first.indices and config.engine == "native":
        raise UserError("--engine native runs on the CPU only: add --gpu-ids None, or use warp.")
    if outer and config.max_restarts:
        raise UserError(
            f"--max-restarts is {config.max_restarts}, but torchrun or a scheduler has started "
            "these workers and has to restart them."
        )


def _threads(config: TrainConfig, host: Devices) -> int:
    """Return the CPU threads of each of a host's workers."""
    wanted, cores, workers = config.cpu_threads or host.cores, host.cores, len(host.names)
    if wanted > cores:
        raise UserError(
            f"--cpu-threads is {wanted}; it must be at most {cores}, the cores that a process on "
            f"{host.host} may use."
        )
    return max(1, wanted // workers)


def _divide_envs(config: TrainConfig, world_size: int) -> TrainConfig:
    """Return the configuration with the environments of each worker, if those of all were given."""
    if config.eval_interval is not None and config.eval_envs < world_size:
        raise UserError(
            f"--eval-envs is {config.eval_envs}; it must be at least {world_size}, the number of "
            "workers, which share them."
        )
    total = config.total_envs
    if total is None:
        return config
    if total % world_size:
        raise UserError(
            f"--total-envs is {total}; it must be a multiple of {world_size}, one part per worker, "
            f"such as {total + -total % world_size}."
        )
    return config.with_num_envs(total // world_size)


def _limit_steps(plan: LaunchPlan, total: int) -> LaunchPlan:
    """Return the plan with the iterations that reach so many steps.

    Steps and iterations before the checkpoint count.
    """
    iteration_steps, checkpoint = plan.steps_per_iteration, plan.checkpoint
    iterations = steps = 0
    if checkpoint and plan.start.iteration:
        iterations, steps = plan.start.iteration, counted(checkpoint, "total_steps") or 0
        if not steps:  # Checkpoints of earlier versions do not say it.
            rows = read_rows(checkpoint.absolute().parents[1] / METRICS_FILE, iterations)[1]
            steps = int(
                (value(rows[-1], "total_steps") if rows else None) or iterations * iteration_steps
            )
    iterations += max(0, math.ceil((total - steps) / iteration_steps))
    agent = replace(plan.config.agent, max_iterations=iterations)
    note = f"--total-steps {total}: {iterations} iterations, of {iteration_steps} steps each"
    config = replace(plan.config, agent=agent)
    return replace(plan, config=config, notes=(*plan.notes, note))


def _notes(config: TrainConfig, hosts: Sequence[Devices], world_size: int) -> Iterator[str]:
    if hosts[0].note:
        yield f"{hosts[0].note}: training on the CPU"
    if config.total_envs is not None:
        envs = f"{config.env.num_envs} environments for each of {world_size} workers"
        yield f"--total-envs {config.total_envs}: {envs}"
    for host in hosts:
        if (workers := len(host.names)) > host.cores:
            yield f"{host.host}: {workers} workers share {host.cores} CPU cores and will be slow"
