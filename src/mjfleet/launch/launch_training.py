"""From a configuration to a run that has ended: hosts, plan, run directory, workers."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from functools import partial

from mjfleet.autotune.num_envs_search import find_num_envs, recall
from mjfleet.config import TrainConfig
from mjfleet.errors import UserError, WorkerError
from mjfleet.launch.devices import choose_devices, needs_gpus
from mjfleet.launch.host_environment import take_variables, without_values
from mjfleet.launch.host_starter import HostConnections, choose_hosts
from mjfleet.launch.launch_plan import Host, LaunchPlan, divide_worlds, make_plan
from mjfleet.launch.launcher import launch, make_worker_args
from mjfleet.launch.preflight import reach
from mjfleet.launch.restart_policy import start_again
from mjfleet.registry import FoundTask
from mjfleet.runs.resume_choice import Resume
from mjfleet.runs.run_directory import Attempt, RunDirectory
from mjfleet.utils.console import print_line
from mjfleet.utils.hardware_names import count_gpus, cpu_name, gpu_name
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.under_torchrun import begun_run, note_run

PlanAgain = Callable[..., tuple[LaunchPlan, TrainConfig]]
"""Plans the same with another configuration, or for another time."""


def begin(
    found: FoundTask,
    config: TrainConfig,
    resume: Resume | None,
    is_restart: bool,
    arguments: Sequence[str],
) -> int:
    """Find the hosts, plan and run; returns the exit code.

    Args:
        found: the task.
        config: its configuration; with --dry-run, the plan is printed and nothing is run.
        resume: the run that goes on, if one does.
        is_restart: whether that has failed just now.
        arguments: those of the command, for the run's record.

    Raises:
        UserError: the configuration asks for what cannot be had.
        WorkerError: hosts or workers failed.
    """
    config = replace(config, env_var=take_variables(config.env_var, os.environ))
    names = choose_hosts(config, os.environ)
    if not names:
        return _train(found, config, [_this_host(config)], None, resume, is_restart, arguments)
    with reach(names, found, config, is_restart) as (connections, hosts):
        return _train(found, config, hosts, connections, resume, is_restart, arguments)


def _train(
    found: FoundTask,
    config: TrainConfig,
    hosts: Sequence[Host],
    connections: HostConnections | None,
    resume: Resume | None,
    is_restart: bool,
    arguments: Sequence[str],
) -> int:
    """Plan for these hosts and run; `posts` are the connections to them, if there are several."""
    plan_again = partial(_plan, found, hosts=hosts, resume=resume, is_restart=is_restart)
    plan, config = plan_again(config)
    if config.dry_run:
        answer = None
        if config.env.num_envs == "auto":
            answer = recall(make_worker_args(plan, config), _device_names(plan))
        if answer:
            config = config.with_num_envs(answer.num_envs)
            plan, config = plan_again(config)
            note = f"--env.num-envs auto: worlds as measured at {answer.when}"
            plan = replace(plan, notes=(*plan.notes, note))
        if plan.rank.rank == 0:
            print_line(describe(plan))
        return 0
    total = config.agent.max_iterations
    if resume and (resume.iteration or 0) >= total:
        if plan.rank.rank == 0:
            done = f"{resume.checkpoint} has all of --agent.max-iterations {total}"
            print_line(f"nothing is left to do: {done}; a greater total trains on")
        return 0
    if config.env.num_envs == "auto":
        num_envs = find_num_envs(make_worker_args(plan, config), _device_names(plan))
        config = config.with_num_envs(num_envs)
        plan, config = plan_again(config)
    argv = ["train", *without_values(arguments)]
    return _run(found, config, plan, plan_again, resume, argv, connections)


def begun_already(config: TrainConfig) -> str | None:
    """The run that these workers go on with, which torchrun has started again."""
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


def _device_names(plan: LaunchPlan) -> list[str]:
    """Return the model of each worker's device."""
    return [gpu_name(w.physical) if w.physical else cpu_name() for w in plan.workers]


def describe(plan: LaunchPlan) -> str:
    """The plan as --dry-run prints it."""
    who = {
        "in-process": "in this process",
        "torchrunx": "started by torchrunx",
        "hosts": "started by torchrunx on each host",
        "outer": "started already",
    }[plan.launcher]
    talk = f", which talk by {plan.backend}" if plan.backend else ""
    log_dir = plan.torchrunx_log_dir or "none"
    worlds = "found when training begins"
    if plan.worlds_per_worker is not None:
        total = plan.worlds_per_worker * plan.world_size
        worlds = f"{plan.worlds_per_worker} per worker, {total} in total"
    lines = {
        "task": f"{plan.task} ({plan.task_folder})",
        "workers": f"{plan.world_size}, {who}{talk}",
        "engine": plan.engine,
        "worlds": worlds,
        "steps per iteration": plan.steps_per_iteration or "as many as the worlds allow",
        "iterations": plan.max_iterations,
        "run directory": f"{plan.run_dir}, which goes on" if plan.goes_on else plan.run_dir,
        "goes on from": plan.checkpoint or "nothing, it begins",
        "torchrunx log directory": f"{log_dir} ({plan.torchrunx_log_dir_source})",
    }
    table = [("rank", "host", "device", "seed", "threads", "log file")]
    for w in plan.workers:
        device = f"{w.device} (the machine's {w.physical})" if w.physical else w.device
        no_file = "none" if plan.launcher in ("torchrunx", "hosts") else "none: it prints here"
        log_file = str(w.log_file) if w.log_file else no_file
        table.append((str(w.rank), w.host, device, str(w.seed), str(w.threads), log_file))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rows = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
    plain = [f"{name + ':':<25}{value}" for name, value in lines.items()]
    return "\n".join([*plain, "", *rows, *(["", *plan.notes] if plan.notes else [])])


def _this_host(config: TrainConfig) -> Host:
    """This host, and what of it the run uses."""
    outer = Rank.from_environ(os.environ)
    started = outer.local_world_size if outer else None
    num_gpus = count_gpus() if needs_gpus(config) else 0
    devices = choose_devices(config, os.environ, num_gpus, started)
    return Host(devices=devices, cores=len(os.sched_getaffinity(0)))


def _plan(
    found: FoundTask,
    config: TrainConfig,
    hosts: Sequence[Host],
    resume: Resume | None,
    is_restart: bool,
    when: datetime | None = None,
) -> tuple[LaunchPlan, TrainConfig]:
    """The plan, and the configuration with the worlds of each worker."""
    outer = Rank.from_environ(os.environ)
    workers = sum(len(host.devices.names) for host in hosts)
    config = divide_worlds(config, outer.world_size if outer else workers)
    when = when or datetime.now()
    return make_plan(found, config, hosts, os.environ, when, resume, is_restart), config


def _run(
    found: FoundTask,
    config: TrainConfig,
    plan: LaunchPlan,
    plan_again: PlanAgain,
    resume: Resume | None,
    argv: Sequence[str],
    connections: HostConnections | None,
) -> int:
    """Run the plan; of several ranks that something else has started, the first one reports."""
    run_dir = None
    if plan.rank.rank == 0:
        plan, run_dir = _create(config, plan, plan_again, resume, argv)
        note_run(plan.run_dir)
        for line in (f"run directory: {plan.run_dir}", *plan.notes):
            print_line(line)
        if plan.checkpoint:
            print_line(f"going on from {plan.checkpoint}")
    code = 1
    try:
        code = launch(plan, config, run_dir, connections)
    except WorkerError as error:
        print(error, file=sys.stderr)
    except UserError as error:
        if run_dir:
            run_dir.discard()
            note_run(None)
            what = "left as it was" if plan.goes_on else "removed again"
            print_line(f"{what}, nothing was run: {plan.run_dir}")
            raise
        print(f"rank {plan.rank.rank}: error: {error}", file=sys.stderr)
        code = 2
    if run_dir:
        run_dir.close()
        if code == 1 and config.max_restarts:
            code = start_again(plan.run_dir, config.max_restarts)
        print_line(f"run directory: {plan.run_dir}")
        if code and list((plan.run_dir / "checkpoints").glob("model_*.pt")):
            print_line(
                f"go on with: {_command()} {found.name} --resume {shlex.quote(str(plan.run_dir))}"
            )
    if code and plan.launcher == "outer" and plan.backend == "nccl":
        # NCCL, left behind, could keep Python from ending.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _command() -> str:
    """How `train` can be called from here."""
    if "UV_RUN_RECURSION_DEPTH" in os.environ:
        return "uv run train"
    return "train" if shutil.which("train") else f"{sys.executable} -m mjfleet.cli.train"


def _create(
    config: TrainConfig,
    plan: LaunchPlan,
    plan_again: PlanAgain,
    resume: Resume | None,
    argv: Sequence[str],
) -> tuple[LaunchPlan, RunDirectory]:
    """The run directory; under the next second's name if another run began in the same one."""
    when = datetime.now()
    while True:
        try:
            lock = resume.lock if resume else None
            return plan, RunDirectory(plan.run_dir, make_attempt(plan, config, argv), lock)
        except FileExistsError:
            when += timedelta(seconds=1)
            plan, config = plan_again(config, when=when)


def make_attempt(plan: LaunchPlan, config: TrainConfig, argv: Sequence[str]) -> Attempt:
    """Return what the run directory records about the attempt to train by this plan."""
    log_file = plan.workers[0].log_file
    folder, source = plan.torchrunx_log_dir, plan.torchrunx_log_dir_source
    return Attempt(
        task=plan.task,
        task_folder=plan.task_folder,
        config=config,
        argv=argv,
        plan=asdict(plan),
        is_resumed=plan.goes_on,
        is_restart=plan.is_restart,
        checkpoint=plan.checkpoint,
        log_folder=log_file.parent if log_file else None,
        log_folder_name=f"torchrunx log directory {folder} ({source})",
    )
