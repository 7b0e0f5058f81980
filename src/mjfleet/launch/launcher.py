"""From a plan to a finished run: the run directory, the worker, and the record of how it ended."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path

from mjfleet import worker
from mjfleet.config import TrainConfig, to_dict
from mjfleet.errors import UserError
from mjfleet.launch.config_file import write_config
from mjfleet.launch.plan import LaunchPlan
from mjfleet.report.record import git_state, now, stack_versions, write_record


def create_run_dir(plan: LaunchPlan, config: TrainConfig, argv: Sequence[str]) -> list[Path]:
    """Make the run directory with config.yaml and run.json.

    Returns:
        The folders that were made, innermost first, for `discard`.

    Raises:
        FileExistsError: a run of that name exists.
        UserError: the folder cannot be made.
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
        "plan": {k: str(v) if isinstance(v, Path) else v for k, v in asdict(plan).items()},
        "versions": stack_versions(),
        "git": git_state([package, plan.task_folder]),
    }
    missing = [path for path in (plan.run_dir, *plan.run_dir.parents) if not path.exists()]
    try:
        (plan.run_dir / "checkpoints").mkdir(parents=True)
        write_config(plan.run_dir / "config.yaml", plan.task, config)
        write_record(plan.run_dir, **record)
    except FileExistsError:
        if plan.run_dir.is_dir():
            raise
        raise UserError(f"--log-root {config.log_root}: a file is in the way.") from None
    except OSError as error:
        discard(missing)
        raise UserError(f"--log-root {config.log_root}: {error.strerror}.") from None
    return missing


def discard(made: Sequence[Path]) -> None:
    """Remove a run directory in which nothing has run, and the folders made to hold it."""
    shutil.rmtree(made[0], ignore_errors=True)
    for folder in made[1:]:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def launch(plan: LaunchPlan, config: TrainConfig) -> int:
    """Run the plan in its run directory; returns the exit code.

    Whatever the worker raises is raised here, once the record says that the run failed.
    """
    stop = worker.StopRequest()
    job = worker.Job(
        task=plan.task,
        task_folder=str(plan.task_folder),
        config=to_dict(config),
        device=plan.devices[0],
        engine=plan.engine,
        threads=plan.threads,
        run_dir=str(plan.run_dir),
    )
    status = "failed"
    try:
        with stop.installed():
            outcome = worker.run(job, stop)
        status = "finished" if outcome.stopped_by is None else "stopped"
        stopped_by = outcome.stopped_by
    except worker.Stopped as stopped:
        status = "stopped"
        stopped_by = stopped.signal_number
    finally:
        write_record(plan.run_dir, status=status, ended=now())
    return 0 if stopped_by is None else 128 + stopped_by
