"""Trains from a configuration until the run has ended. Runs in the launcher."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from mjfleet.config import TrainConfig
from mjfleet.launch.devices import Devices, choose_devices
from mjfleet.launch.host_environment import take_variables, without_values
from mjfleet.launch.host_names import LOCALHOST, choose_hosts
from mjfleet.launch.host_starter import HostConnections
from mjfleet.launch.launch_plan import LaunchPlan, describe, make_plan, name_files
from mjfleet.launch.planned_run import FAILED, run_plan
from mjfleet.launch.preflight import reach_hosts
from mjfleet.launch.restart_policy import wait_for_restart
from mjfleet.launch.total_steps import limit_steps
from mjfleet.registry import FoundTask, find_task
from mjfleet.runs.attempts import undone_checkpoint
from mjfleet.runs.checkpoints import INIT
from mjfleet.runs.resume_choice import Resume
from mjfleet.runs.run_directory import Attempt, RunDirectory, finish_complete, refuse_written
from mjfleet.runs.run_json import read_record
from mjfleet.runs.run_lock import lock_run
from mjfleet.runs.task_snapshot import code_of_restart
from mjfleet.utils.console import print_line
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.stop_signals import StopRequest


def launch_training(
    found: FoundTask, config: TrainConfig, resume: Resume | None, arguments: Sequence[str]
) -> int:
    """Train until the run has ended for good; return the exit code.

    With --dry-run the plan is printed and nothing is run. `resume` is the run that continues, if
    one does; the arguments are for the run's record.

    Raises:
        UserError: a value does not fit the others or this machine, or the run directory cannot be
            written.
        WorkerError: workers that torchrun has started again do not find each other.
    """
    config = replace(config, env_var=take_variables(config.env_var, os.environ))
    while True:
        code, plan = _attempt(found, config, resume, arguments)
        if plan is None:
            return code
        config, run_dir = plan.config, plan.run_dir
        if code == FAILED and config.max_restarts:
            code = wait_for_restart(run_dir, config.max_restarts)
            if code is None:
                # The task as the run has trained it, whatever has been edited since.
                folder = code_of_restart(run_dir.absolute(), found.folder)
                found = found if folder == found.folder else find_task(found.name, folder)
                resume = _where_it_was(found.name, run_dir)
                continue
        print_line(f"run directory: {run_dir}")
        if code and list((run_dir / "checkpoints").glob("model_*.pt")):
            print_line(_how_to_continue(found.name, run_dir))
        return code


def _where_it_was(task: str, run_dir: Path) -> Resume:
    """Lock a run and return where it continues after a fault."""
    lock = lock_run(run_dir)
    path = undone_checkpoint(run_dir) or run_dir
    resume = Resume(path=path, task=task, run_dir=run_dir, lock=lock, is_restart=True)
    return resume.with_checkpoint()


def _attempt(
    found: FoundTask, config: TrainConfig, resume: Resume | None, arguments: Sequence[str]
) -> tuple[int, LaunchPlan | None]:
    """Train once; return the exit code, and the plan if this process opened the run directory."""
    with ExitStack() as stack:
        with StopRequest().installed():
            connections = None
            names = choose_hosts(config, os.environ)
            if names == [LOCALHOST]:
                outer = Rank.from_environ(os.environ)
                started = outer.local_world_size if outer else None
                hosts = [choose_devices(config, os.environ, started=started)]
            else:
                is_restart = bool(resume and resume.is_restart)
                reached = reach_hosts(names, found, config, is_restart)
                connections, hosts = stack.enter_context(reached)
            plan = plan_size(found, config, hosts, os.environ, resume)
            is_first, total = plan.rank.rank == 0, plan.config.agent.max_iterations
            if resume and (resume.iteration or 0) >= total and not config.dry_run:
                if is_first:
                    if resume.run_dir:
                        finish_complete(resume.run_dir)
                    print_line(_why_done(resume, plan.config))
                return 0, None
            plan = name_files(plan, os.environ, datetime.now())
            if config.run_dir and is_first and not plan.continues:
                refuse_written(plan.run_dir)
            if config.dry_run:
                if is_first:
                    print_line(describe(plan))
                return 0, None
            if plan.has_host_agents and connections is None:  # It starts while folders are made.
                connections = stack.enter_context(HostConnections(names, config))
            run_dir = None
            if is_first:
                plan, run_dir = _create_run_dir(plan, found, arguments, resume)
                for line in (f"run directory: {plan.run_dir}", *plan.notes):
                    print_line(line)
                if plan.checkpoint:
                    is_init = plan.checkpoint.name == INIT
                    how = "beginning with networks of" if is_init else "continuing from"
                    print_line(f"{how} {(is_init and config.init_from) or plan.checkpoint}")
        code = run_plan(plan, run_dir, connections)
        return code, plan if run_dir else None


def plan_here(found: FoundTask, config: TrainConfig) -> LaunchPlan:
    """Return the plan of a new run on this host; UserError if a value does not fit it."""
    with StopRequest().installed():
        plan = plan_size(found, config, [choose_devices(config, os.environ)], os.environ)
    return name_files(plan, os.environ, datetime.now())


def plan_size(
    found: FoundTask,
    config: TrainConfig,
    hosts: Sequence[Devices],
    environ: Mapping[str, str],
    resume: Resume | None = None,
) -> LaunchPlan:
    """Return the plan with environments and iterations, see `make_plan`; it names no files yet.

    Raises:
        UserError: also if a worker's rollouts cannot be learned from.
    """
    plan = make_plan(found, config, hosts, environ, resume)
    plan.config.check_rollouts()
    return plan if plan.config.total_steps is None else limit_steps(plan, resume)


def _why_done(resume: Resume, config: TrainConfig) -> str:
    """Return the message for a run that already has all its iterations, or more."""
    done, total = resume.iteration, config.agent.max_iterations
    length = f"--agent.max-iterations {total}"
    if config.total_steps is not None:
        length = f"--total-steps {config.total_steps}"
    return (
        f"nothing is left to do: {resume.checkpoint} has {'all ' * (done == total)}{done} "
        f"iterations; {length} is the total, not how many more: raise it to train further"
    )


def _create_run_dir(
    plan: LaunchPlan, found: FoundTask, arguments: Sequence[str], resume: Resume | None
) -> tuple[LaunchPlan, RunDirectory]:
    """Enter the attempt; a name that is taken becomes that of a later second."""
    when = datetime.now()
    while True:
        attempt = Attempt(
            task=plan.task,
            task_folder=plan.task_folder,
            config=plan.config,
            defaults=found.defaults(),
            argv=["train", *without_values(arguments)],
            plan=plan.record(),
            checkpoint=plan.checkpoint,
            parent=resume.parent if resume else None,
            continues=plan.continues,
            is_restart=bool(resume and resume.is_restart),
        )
        try:
            run_dir = RunDirectory(plan.run_dir, attempt, plan.logs, resume and resume.lock)
            of_run = {"checkpoint": run_dir.checkpoint, "task_hash": run_dir.task_hash}
            return replace(plan, **of_run, attempt=run_dir.token), run_dir
        except FileExistsError:
            when += timedelta(seconds=1)
            plan = name_files(plan, os.environ, when)


def _how_to_continue(task: str, run_dir: Path) -> str:
    """Return the command that continues a run, with a change if it would fail again as it was."""
    *_, last = read_record(run_dir).get("attempts") or [{}]
    again = "it would fail again as it was; " if last.get("kind") == "DivergedError" else ""
    return f"{again}resume with: {resume_command(task, run_dir)} {last.get('flags', '')}".rstrip()


def resume_command(task: str, folder: Path) -> str:
    """Return the command that continues a run or a group, as it can be called from here."""
    train = "train" if shutil.which("train") else f"{sys.executable} -m mjfleet.cli.train"
    if "UV_RUN_RECURSION_DEPTH" in os.environ:
        train = "uv run train"
    return f"{train} {task} --resume {shlex.quote(str(folder))}"
