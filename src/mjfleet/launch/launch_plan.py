"""The launch plan: everything that is decided before a run starts. Pure, and printed by --dry-run.

Runs in the launcher.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from mjfleet.config import TrainConfig
from mjfleet.launch.log_directory import choose_log_directory
from mjfleet.launch.placement import Host, Placement, place_workers
from mjfleet.registry import FoundTask
from mjfleet.runs.resume_choice import Resume


@dataclass(frozen=True, kw_only=True)
class LaunchPlan(Placement):
    """Everything that is decided before a run starts."""

    seed: int
    envs_per_worker: int | None
    """None, with --dry-run alone: to be found by measuring."""
    steps_per_iteration: int | None
    """Environment steps of all workers in one iteration; None: it depends on the environments."""
    max_iterations: int
    run_dir: Path
    goes_on: bool
    """Whether the run directory is that of an earlier run, which continues."""
    checkpoint: Path | None
    """Where training continues from; None: it begins."""
    is_restart: bool
    """Whether the run was started again after a fault, by itself."""
    torchrunx_log_dir: Path | None = None
    torchrunx_log_dir_source: str = ""
    notes: tuple[str, ...] = ()
    """What the user should be told about these decisions."""


def make_plan(
    found: FoundTask,
    config: TrainConfig,
    hosts: Sequence[Host],
    environ: Mapping[str, str],
    now: datetime,
    resume: Resume | None = None,
    is_restart: bool = False,
) -> LaunchPlan:
    """Decide everything.

    Args:
        found: the task and its folder.
        config: the resolved configuration, with the environments of each worker.
        hosts: as in `place_workers`.
        environ: environment variables.
        now: the time that names the run directory.
        resume: the run that continues; None: a new run.
        is_restart: whether it does so by itself.

    Raises:
        UserError: devices, threads, engine or backend do not fit each other.
    """
    placement = place_workers(found, config, hosts, environ)
    agent, world_size = config.agent, placement.world_size
    envs = None if config.env.num_envs == "auto" else config.num_envs
    plan = LaunchPlan(
        **vars(placement),
        seed=agent.seed,
        envs_per_worker=envs,
        steps_per_iteration=envs and world_size * envs * agent.num_steps_per_env,
        max_iterations=agent.max_iterations,
        run_dir=(resume and resume.run_dir) or Path(),
        goes_on=bool(resume and resume.run_dir),
        checkpoint=resume.checkpoint if resume else None,
        is_restart=is_restart,
        notes=(*_notes(config, hosts, world_size), *(resume.notes if resume else ())),
    )
    return name_files(plan, config, environ, now)


def name_files(
    plan: LaunchPlan, config: TrainConfig, environ: Mapping[str, str], when: datetime
) -> LaunchPlan:
    """Return the plan with run directory, unless it goes on, and log files named by a time."""
    name = when.strftime("%Y-%m-%d_%H-%M-%S")
    name += f"_{config.agent.run_name}" if config.agent.run_name else ""
    run_dir = Path(config.log_root) / config.agent.experiment_name / name
    run_dir = plan.run_dir if plan.goes_on else run_dir
    log_dir, source = choose_log_directory(config, environ, run_dir)
    workers = plan.workers
    if log_dir and plan.launcher in ("torchrunx", "hosts"):
        folder = log_dir / when.isoformat(timespec="seconds")
        firsts = {worker.host: worker.rank for worker in reversed(workers)}
        workers = tuple(
            replace(w, log_file=folder / f"{w.host}[{w.rank - firsts[w.host]}].log")
            for w in workers
        )
    return replace(
        plan,
        run_dir=run_dir,
        workers=workers,
        torchrunx_log_dir=log_dir,
        torchrunx_log_dir_source=source,
    )


def describe(plan: LaunchPlan) -> str:
    """Return the plan as --dry-run prints it."""
    who = {
        "in-process": "in this process",
        "torchrunx": "started by torchrunx",
        "hosts": "started by torchrunx on each host",
        "outer": "started already",
    }[plan.launcher]
    talk = f", which talk by {plan.backend}" if plan.backend else ""
    envs = "found when training begins"
    if plan.envs_per_worker is not None:
        total = plan.envs_per_worker * plan.world_size
        envs = f"{plan.envs_per_worker} per worker, {total} in total"
    log_dir = plan.torchrunx_log_dir or "none"
    lines = {
        "task": f"{plan.task} ({plan.task_folder})",
        "workers": f"{plan.world_size}, {who}{talk}",
        "engine": plan.engine,
        "worlds": envs,
        "steps per iteration": plan.steps_per_iteration or "as many as the worlds allow",
        "iterations": plan.max_iterations,
        "run directory": f"{plan.run_dir}, which goes on" if plan.goes_on else plan.run_dir,
        "goes on from": plan.checkpoint or "nothing, it begins",
        "torchrunx log directory": f"{log_dir} ({plan.torchrunx_log_dir_source})",
    }
    table = [("rank", "host", "device", "seed", "threads", "log file")]
    no_file = "none" if plan.launcher in ("torchrunx", "hosts") else "none: it prints here"
    for w in plan.workers:
        device = f"{w.device} (the machine's {w.physical})" if w.physical else w.device
        log_file = str(w.log_file) if w.log_file else no_file
        table.append((str(w.rank), w.host, device, str(w.seed), str(w.threads), log_file))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rows = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
    plain = [f"{name + ':':<25}{value}" for name, value in lines.items()]
    return "\n".join([*plain, "", *rows, *(["", *plan.notes] if plan.notes else [])])


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
