"""`train <task> [flags]`, also `mjfleet train` and `python -m mjfleet.cli.train`."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mjfleet.cli.flags import parse_flags, peek
from mjfleet.config import LaunchConfig, TrainConfig, from_dict
from mjfleet.errors import UserError, run_command
from mjfleet.launch.restart_policy import VARIABLE
from mjfleet.registry import FoundTask, Registry, bundled_tasks, discover
from mjfleet.runs.config_yaml import read_config
from mjfleet.runs.resume_choice import find_resume, read_recorded, take_tasks_dir
from mjfleet.utils.packages import need_extra
from mjfleet.worker.rank_environment import torchrun_variables


def main() -> None:
    """Entry point of the command `train`."""
    os.environ.update(torchrun_variables(os.environ))
    sys.exit(run_command(train, sys.argv[1:]))


def train(arguments: Sequence[str]) -> int:
    """Parse, plan and run; returns the exit code."""
    failed = os.environ.pop(VARIABLE, None)
    if failed is not None:
        arguments = [arguments[0], "--resume", failed]
    data = _base(arguments)
    registry = discover(os.environ, peek(arguments, "--tasks-dir") or take_tasks_dir(data))
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
    from mjfleet.launch.launch_training import begin, begun_already  # Help does not wait for it.

    if failed is None and not config.dry_run and (begun := begun_already(config)):
        os.environ[VARIABLE] = begun
        return train(arguments)
    resume = None
    if config.resume is not None:
        experiment = Path(config.log_root, config.agent.experiment_name)
        take_lock = not config.dry_run and os.environ.get("RANK", "0") == "0"
        resume = find_resume(config.resume, name, experiment, take_lock)
        config = parse(found, flags, resume.config or data)
    need_extra("skrl", f"--agent.library {config.agent.library}", config.agent.packages)
    return begin(found, config, resume, failed is not None, arguments)


def _base(arguments: Sequence[str]) -> dict[str, Any]:
    """The configuration to start from: a file's, or that of a run that goes on."""
    file, wanted = peek(arguments, "--config"), peek(arguments, "--resume")
    if file is not None and wanted is not None:
        raise UserError("--config and --resume: a run goes on with its own configuration.")
    if wanted is not None:
        return read_recorded(wanted)
    return {} if file is None else read_config(file)


def parse(found: FoundTask, flags: Sequence[str], data: Mapping[str, Any]) -> TrainConfig:
    """The task's defaults, then the data of the file that --config names, then the flags."""
    default = found.defaults()
    try:
        default = from_dict(default, data)
    except UserError as error:
        source = f"--config {file}" if (file := peek(flags, "--config")) else "its config.yaml"
        raise UserError(f"{source}: {error}") from None
    config = parse_flags(
        TrainConfig, flags, f"train {found.name}", default, description=found.task.summary
    )
    if peek(flags, "--env.num-envs") is not None:
        if peek(flags, "--total-envs") is not None:
            raise UserError(
                "--total-envs and --env.num-envs: give the worlds of all workers together, or "
                "those of each."
            )
        config = replace(config, total_envs=None)
    # Written into the run directory, the task must be found from anywhere.
    folder = found.folder.parent
    return replace(config, tasks_dir=None if folder == bundled_tasks() else str(folder))


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
        parse_flags(LaunchConfig, ["--help"], "train <task>", description=description)
    except SystemExit:
        return


if __name__ == "__main__":
    main()
