"""`train <task> [flags]`, also `mjfleet train` and `python -m mjfleet.cli.train`."""

import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import tyro

from mjfleet.cli.arguments import PARSERS, STYLE, peek
from mjfleet.config import LaunchConfig, TrainConfig, from_dict
from mjfleet.errors import UserError
from mjfleet.launch.config_file import read_config
from mjfleet.launch.devices import Devices, count_gpus, select_devices
from mjfleet.launch.plan import LaunchPlan, make_plan
from mjfleet.registry import FoundTask, Registry, bundled_tasks, discover
from mjfleet.report.record import METRICS_FILE
from mjfleet.tell import tell


def main() -> None:
    """Entry point of the command `train`."""
    sys.exit(guarded(train, sys.argv[1:]))


def guarded(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Run a command; the user's mistakes become one message and exit code 2."""
    try:
        return command(arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def train(arguments: Sequence[str]) -> int:
    """Parse, plan and run; returns the exit code."""
    file = peek(arguments, "--config")
    data = {} if file is None else read_config(file)
    recorded = data.get("tasks_dir")
    if isinstance(recorded, str) and not os.path.isdir(recorded):
        # Recorded elsewhere: the task may still be found in the usual places.
        recorded = data["tasks_dir"] = None
    folder = peek(arguments, "--tasks-dir") or (recorded if isinstance(recorded, str) else None)
    registry = discover(os.environ, folder)
    if not arguments or (arguments[0].startswith("-") and {"-h", "--help"} & set(arguments)):
        _print_help(registry)
        return 0 if arguments else 2
    name, flags = arguments[0], arguments[1:]
    if name.startswith("-"):
        raise UserError(
            f"the task comes first: train <task> {name} ... (`train --help` lists tasks)"
        )
    found = registry.find(name)
    config = parse(found, flags, data)
    plan = _plan(found, config, datetime.now())
    if config.dry_run:
        tell(describe(plan))
        return 0
    return _run(found, config, plan, ["train", *arguments])


def parse(found: FoundTask, flags: Sequence[str], data: Mapping[str, Any]) -> TrainConfig:
    """The task's defaults, then the data of the file that --config names, then the flags."""
    default = found.defaults()
    try:
        default = from_dict(default, data)
    except UserError as error:
        raise UserError(f"--config {peek(flags, '--config')}: {error}") from None
    config = tyro.cli(
        TrainConfig,
        default=default,
        args=flags,
        prog=f"train {found.name}",
        description=found.task.summary,
        config=STYLE,
        registry=PARSERS,
    )
    # Written into the run directory, the task must be found from anywhere.
    folder = found.folder.parent
    return replace(config, tasks_dir=None if folder == bundled_tasks() else str(folder))


def describe(plan: LaunchPlan) -> str:
    """The plan as --dry-run prints it."""
    physical = f" (the machine's {', '.join(plan.physical_devices)})"
    total = plan.worlds_per_worker * plan.world_size
    log_dir = plan.torchrunx_log_dir or "none"
    lines = {
        "task": f"{plan.task} ({plan.task_folder})",
        "mode": {"cpu": "CPU, in this process", "single-gpu": "one GPU, in this process"}[
            plan.mode
        ],
        "devices": ", ".join(plan.devices) + (physical if plan.physical_devices else ""),
        "engine": plan.engine,
        "CPU threads": plan.threads,
        "seed": plan.seed,
        "worlds": f"{plan.worlds_per_worker} per worker, {total} in total",
        "steps per iteration": plan.steps_per_iteration,
        "iterations": plan.max_iterations,
        "run directory": plan.run_dir,
        "torchrunx log directory": f"{log_dir} ({plan.torchrunx_log_dir_source})",
    }
    plain = [f"{name + ':':<25}{value}" for name, value in lines.items()]
    return "\n".join([*plain, *([plan.note] if plan.note else [])])


def _plan(found: FoundTask, config: TrainConfig, when: datetime) -> LaunchPlan:
    # The native engine needs no GPU: leave one alone unless it was asked for.
    if config.engine == "native" and config.gpu_ids == "auto":
        devices = Devices((), (), "--engine native")
    else:
        gpus = 0 if config.gpu_ids is None else count_gpus()
        devices = select_devices(config.gpu_ids, os.environ, gpus)
    cores = len(os.sched_getaffinity(0))
    return make_plan(found, config, devices, os.environ, cores, when)


def _run(found: FoundTask, config: TrainConfig, plan: LaunchPlan, argv: Sequence[str]) -> int:
    from mjfleet.launch.launcher import create_run_dir, discard, launch

    when = datetime.now()
    while True:
        try:
            made = create_run_dir(plan, config, argv)
            break
        except FileExistsError:
            # Another run began in the same second: take the next second's name.
            when += timedelta(seconds=1)
            plan = _plan(found, config, when)
    where = f"run directory: {plan.run_dir}"
    tell(where)
    if plan.note:
        tell(plan.note)
    try:
        code = launch(plan, config)
    except Exception as error:
        if isinstance(error, UserError) and not (plan.run_dir / METRICS_FILE).exists():
            discard(made)
            tell(f"removed again, nothing was run: {plan.run_dir}")
            raise
        traceback.print_exc()
        code = 1
    tell(where)
    return code


def _print_help(registry: Registry) -> None:
    """All tasks and the flags they share, by way of tyro."""
    width = max((len(name) for name in registry.tasks), default=0)
    tasks = [f"  {name:<{width}}  {found.task.summary}" for name, found in registry.tasks.items()]
    tasks += [f"  {folder} could not be read: {why}" for folder, why in registry.broken.items()]
    description = (
        "Train a policy.\n\ntasks:\n"
        + "\n".join(tasks)
        + "\n\n`train <task> --help` shows every number of a task. These flags fit every task."
    )
    try:
        tyro.cli(
            LaunchConfig,
            args=["--help"],
            prog="train <task>",
            description=description,
            registry=PARSERS,
        )
    except SystemExit:
        return


if __name__ == "__main__":
    main()
