"""From a plan to a finished run: the run directory, the workers, and the record of how it ended."""

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from mjfleet.config import TrainConfig, to_dict
from mjfleet.errors import UserError
from mjfleet.launch.agent import Agent
from mjfleet.launch.config_file import write_config
from mjfleet.launch.plan import LaunchPlan
from mjfleet.report.record import git_state, now, stack_versions, write_record
from mjfleet.tell import tell
from mjfleet.worker.job import Job, Outcome
from mjfleet.worker.life import run
from mjfleet.worker.stop import Stopped, StopRequest


@dataclass(frozen=True)
class MadeFolders:
    """What a run has made on disk before it begins, for `discard`."""

    own: tuple[Path, ...]
    """Its run directory, and the folder of its logs."""
    around: tuple[Path, ...]
    """Those that were made to hold them, innermost first."""


def create_run_dir(plan: LaunchPlan, config: TrainConfig, argv: Sequence[str]) -> MadeFolders:
    """Make the run directory with config.yaml and run.json, and the folder of the workers' logs.

    Raises:
        FileExistsError: a run of that name exists.
        UserError: a folder cannot be made, or not be written.
    """
    package = Path(str(resources.files("mjfleet")))
    record = {
        "argv": list(argv),
        "task": plan.task,
        "status": "running",
        "iterations": 0,
        "started": now(),
        "ended": None,
        "seed": plan.seed,
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "plan": _plain(asdict(plan)),
        "versions": stack_versions(),
        "git": git_state([package, plan.task_folder]),
    }
    wanted = {plan.run_dir: f"--log-root {config.log_root}"}
    log_file = plan.workers[0].log_file
    if log_file is not None:
        source = plan.torchrunx_log_dir_source
        wanted[log_file.parent] = f"torchrunx log directory {plan.torchrunx_log_dir} ({source})"
    own: list[Path] = []
    around = [p for folder in wanted for p in (folder, *folder.parents) if not p.exists()]
    for folder, what in wanted.items():
        try:
            folder.mkdir(parents=True)
            own.append(folder)
        except OSError as error:
            discard(MadeFolders(tuple(own), tuple(around)))
            if isinstance(error, FileExistsError) and folder.is_dir():
                raise
            raise UserError(f"{what}: {error.strerror}.") from None
    (plan.run_dir / "checkpoints").mkdir()
    write_config(plan.run_dir / "config.yaml", plan.task, config)
    write_record(plan.run_dir, **record)
    return MadeFolders(tuple(own), tuple(around))


def discard(made: MadeFolders) -> None:
    """Remove a run directory in which nothing has run, its logs, and the folders made for them."""
    for folder in made.own:
        shutil.rmtree(folder, ignore_errors=True)
    for folder in made.around:
        with suppress(OSError):  # It was never made, or somebody has put something into it.
            folder.rmdir()


def launch(plan: LaunchPlan, config: TrainConfig) -> int:
    """Run the plan in its run directory; returns the exit code.

    Whatever a worker raises is raised here, once the record says that the run failed.
    """
    stop = StopRequest(say=tell if plan.rank.rank == 0 else lambda text: None)
    job = Job(
        task=plan.task,
        task_folder=str(plan.task_folder),
        config=to_dict(config),
        devices=tuple(worker.device for worker in plan.workers),
        engine=plan.engine,
        threads=plan.threads,
        run_dir=str(plan.run_dir),
        backend=plan.backend,
        local=plan.launcher != "outer",
    )
    status = "failed"
    try:
        with stop.installed():
            outcome = _run(plan, job, stop)
        status = "finished" if outcome.stopped_by is None else "stopped"
        # Workers that we started know SIGINT alone, whatever we received.
        stopped_by = outcome.stopped_by and (stop.received or outcome.stopped_by)
    except Stopped as stopped:
        status = "stopped"
        stopped_by = stopped.signal_number
    finally:
        if plan.rank.rank == 0:
            write_record(plan.run_dir, status=status, ended=now())
    return 0 if stopped_by is None else 128 + stopped_by


def _run(plan: LaunchPlan, job: Job, stop: StopRequest) -> Outcome:
    if plan.launcher != "torchrunx":
        return run(job, plan.rank, stop)
    with Agent(plan.threads) as agent:
        from mjfleet.launch.fleet import run_fleet

        return run_fleet(plan, job, stop, agent)


def _plain(value: Any) -> Any:
    """Paths as text, all the way down."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
