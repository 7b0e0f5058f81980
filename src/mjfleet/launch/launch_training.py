"""`launch_training`: from a configuration to a run that has ended. Runs in the launcher.

One worker that is not to be started again trains in this process, as do workers that torchrun or
srun has started. All others are started by a host agent on each host.
"""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from pathlib import Path

from mjfleet.autotune.num_envs_search import find_num_envs, recall
from mjfleet.config import TrainConfig, from_dict
from mjfleet.errors import WorkerError
from mjfleet.launch.devices import choose_devices, needs_gpus
from mjfleet.launch.host_environment import take_variables, without_values
from mjfleet.launch.host_names import LOCALHOST, choose_hosts
from mjfleet.launch.host_starter import HostConnections
from mjfleet.launch.launch_plan import LaunchPlan, describe, make_plan, name_files
from mjfleet.launch.placement import (
    Host,
    Placement,
    divide_envs,
    make_worker_args,
    place_workers,
)
from mjfleet.launch.planned_run import FAILED, run_plan
from mjfleet.launch.preflight import reach_hosts
from mjfleet.launch.restart_policy import wait_for_restart
from mjfleet.registry import FoundTask
from mjfleet.runs.resume_choice import Resume, find_resume
from mjfleet.runs.run_directory import RunDirectory
from mjfleet.utils.console import print_line
from mjfleet.utils.hardware_names import count_gpus, cpu_name, gpu_name
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.stop_signals import StopRequest
from mjfleet.worker.under_torchrun import begun_run, note_run


def launch_training(
    found: FoundTask, config: TrainConfig, resume: Resume | None, arguments: Sequence[str]
) -> int:
    """Train until the run has ended for good; return the exit code.

    Args:
        found: the task.
        config: its configuration; with `dry_run` the plan is printed and nothing is run.
        resume: the run that continues, if one does.
        arguments: those of the command, for the run's record.

    Raises:
        UserError: the configuration asks for what cannot be had.
        WorkerError: workers that torchrun has started again do not find each other.
    """
    config = replace(config, env_var=take_variables(config.env_var, os.environ))
    is_restart = False
    if not config.dry_run and (begun := _begun_already(config)):
        if resume and resume.lock is not None:
            os.close(resume.lock)
        resume, is_restart = _find_again(found, config, begun), True
        config = from_dict(config, resume.config)
    while True:
        code, config, run_dir = _attempt(found, config, resume, is_restart, arguments)
        if run_dir is None:
            return code
        if code == FAILED and config.max_restarts:
            code = wait_for_restart(run_dir, config.max_restarts)
            if code is None:
                resume, is_restart = _find_again(found, config, str(run_dir)), True
                continue
        print_line(f"run directory: {run_dir}")
        if code and list((run_dir / "checkpoints").glob("model_*.pt")):
            resume_command = f"{found.name} --resume {shlex.quote(str(run_dir))}"
            print_line(f"go on with: {_train_command()} {resume_command}")
        return code


def _find_again(found: FoundTask, config: TrainConfig, run_dir: str) -> Resume:
    """Find the newest checkpoint of a run of this configuration; lock the run on rank 0."""
    experiment = Path(config.log_root, config.agent.experiment_name)
    return find_resume(run_dir, found.name, experiment, os.environ.get("RANK", "0") == "0")


def _begun_already(config: TrainConfig) -> str | None:
    """Return the run that these workers continue, because torchrun has started them again."""
    rank = Rank.from_environ(os.environ)
    if rank is None:
        return None
    try:
        begun = begun_run(rank, timedelta(seconds=config.collective_timeout))
    except TimeoutError as error:
        raise WorkerError(f"rank {rank.rank}: {error}") from None
    if begun and rank.rank == 0:
        print_line("torchrun has started these workers again")
    return begun


def _attempt(
    found: FoundTask,
    config: TrainConfig,
    resume: Resume | None,
    is_restart: bool,
    arguments: Sequence[str],
) -> tuple[int, TrainConfig, Path | None]:
    """Resolve hosts and environments, plan, create the run directory, train.

    Returns:
        The exit code, the configuration with the number of environments, and the run directory, if
        this process has made it or opened it again.
    """
    with ExitStack() as stack:
        with StopRequest().installed():
            connections = None
            names = choose_hosts(config, os.environ)
            if names == [LOCALHOST]:
                hosts = [_this_host(config)]
            else:
                connections, hosts = stack.enter_context(
                    reach_hosts(names, found, config, is_restart)
                )
            placement = place_workers(found, config, hosts, os.environ)
            config = divide_envs(config, placement.world_size)
            done, total = resume and resume.iteration, config.agent.max_iterations
            if (done or 0) >= total and not config.dry_run:
                if placement.rank.rank == 0:
                    have = f"{resume and resume.checkpoint} has all of"
                    have += f" --agent.max-iterations {total}"
                    print_line(f"nothing is left to do: {have}; a greater total trains on")
                return 0, config, None
            config, note = _with_envs(config, placement)
        if placement.launcher in ("torchrunx", "hosts") and not config.dry_run:
            connections = connections or stack.enter_context(HostConnections(names, config))
            connections.send({"prepare": True})
        plan = make_plan(found, config, hosts, os.environ, datetime.now(), resume, is_restart)
        plan = replace(plan, notes=(*plan.notes, *note))
        if config.dry_run:
            if plan.rank.rank == 0:
                print_line(describe(plan))
            return 0, config, None
        run_dir = None
        if plan.rank.rank == 0:
            argv = ["train", *without_values(arguments)]
            plan, run_dir = _create_run_dir(plan, config, argv, resume)
            note_run(plan.run_dir)
            for line in (f"run directory: {plan.run_dir}", *plan.notes):
                print_line(line)
            if plan.checkpoint:
                print_line(f"going on from {plan.checkpoint}")
        code = run_plan(plan, config, run_dir, connections)
        return code, config, plan.run_dir if run_dir else None


def _this_host(config: TrainConfig) -> Host:
    """Return this host, and what of it the run uses."""
    outer = Rank.from_environ(os.environ)
    started = outer.local_world_size if outer else None
    num_gpus = count_gpus() if needs_gpus(config) else 0
    devices = choose_devices(config, os.environ, num_gpus, started)
    return Host(devices=devices, cores=len(os.sched_getaffinity(0)))


def _with_envs(config: TrainConfig, placement: Placement) -> tuple[TrainConfig, tuple[str, ...]]:
    """Replace `--env.num-envs auto` by a number; --dry-run only looks up what was found before."""
    if config.env.num_envs != "auto":
        return config, ()
    args = make_worker_args(placement, config)
    devices = [gpu_name(w.physical) if w.physical else cpu_name() for w in placement.workers]
    if not config.dry_run:
        return config.with_num_envs(find_num_envs(args, devices)), ()
    if known := recall(args, devices):
        note = f"--env.num-envs auto: worlds as measured at {known.when}"
        return config.with_num_envs(known.num_envs), (note,)
    return config, ()


def _create_run_dir(
    plan: LaunchPlan, config: TrainConfig, argv: Sequence[str], resume: Resume | None
) -> tuple[LaunchPlan, RunDirectory]:
    """Create the run directory, named by the next second if another run took the same name."""
    when, lock = datetime.now(), resume.lock if resume else None
    while True:
        log_file = plan.workers[0].log_file
        folder, source = plan.torchrunx_log_dir, plan.torchrunx_log_dir_source
        logs = log_file and log_file.parent, f"torchrunx log directory {folder} ({source})"
        try:
            return plan, RunDirectory(plan.run_dir, config, argv, asdict(plan), lock, *logs)
        except FileExistsError:
            when += timedelta(seconds=1)
            plan = name_files(plan, config, os.environ, when)


def _train_command() -> str:
    """Return how `train` can be called from here."""
    if "UV_RUN_RECURSION_DEPTH" in os.environ:
        return "uv run train"
    return "train" if shutil.which("train") else f"{sys.executable} -m mjfleet.cli.train"
