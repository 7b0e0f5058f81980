"""The command `train`, also `mjfleet train` and `python -m mjfleet.cli.train`.

Runs in the launcher, and in each worker that torchrun, srun or mpirun has started.
"""

import os
import sys
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import Any

from mjfleet.cli.flags import HELP, LIST_FLAGS, is_given, parse_flags, peek, split_words
from mjfleet.cli.help import print_help
from mjfleet.config import TrainConfig, from_dict
from mjfleet.errors import UserError, run_command
from mjfleet.registry import FoundTask, Registry, bundled_tasks, discover, find_task
from mjfleet.runs.beginning import resume_or_fork, with_teacher
from mjfleet.runs.config_yaml import IsGiven, from_file, read_config, task_of
from mjfleet.runs.own_runs import note_of, tasks_dir_of
from mjfleet.runs.resume_choice import (
    Resume,
    Wanted,
    choose,
    find_task_of,
    find_wanted,
    run_at,
)
from mjfleet.runs.run_lookup import is_group, record_of
from mjfleet.runs.task_snapshot import is_snapshot, own_snapshot
from mjfleet.utils.packages import need_extra
from mjfleet.worker.rank_environment import torchrun_variables

UNUSED = ("log_root", "init_from")  # Of a run's configuration, where the run continues.
INIT_STD = "agent.actor.distribution.init-std"
EXCLUSIVE = {
    "total_envs": ("env.num_envs", "for all workers or for each"),
    "total_steps": (
        "agent.max_iterations", "the length of training in steps of all workers or in iterations",
    ),
}  # fmt: skip
"""Fields that say the same as another one, which replaces them if it is given alone."""


def main() -> None:
    """Run the command line `train`."""
    sys.exit(run_command(train, sys.argv[1:]))


def train(arguments: Sequence[str]) -> int:
    """Parse the arguments and train; return the exit code."""
    os.environ.update(torchrun_variables(os.environ))
    arguments = with_task(arguments)
    found, config, resume, group = configure(arguments)
    # Help does not wait for these imports.
    if group:
        from mjfleet.groups.seeds import resume_seeds

        recorded = from_dict(found.defaults(), group.config)
        return resume_seeds(found, group.path, recorded, config, arguments)
    if config.seeds:
        from mjfleet.groups.seeds import train_seeds

        return train_seeds(found, config, arguments)
    if config.per_run is not None:
        raise UserError(f"--per-run {config.per_run} is for several runs: add --seeds.")
    from mjfleet.launch.launch_training import launch_training

    return launch_training(found, config, resume, arguments)


def with_task(arguments: Sequence[str]) -> Sequence[str]:
    """Return the arguments with the task that --config or --resume names, if they name none."""
    if not arguments or not arguments[0].startswith("-"):
        return arguments
    if file := peek(arguments, "--config"):
        return [task_of(file), *arguments]
    wanted = peek(arguments, "--resume")
    if wanted is None or {*HELP, LIST_FLAGS} & set(arguments):
        return arguments
    root = Path(peek(arguments, "--log-root") or TrainConfig().log_root)
    dry_run = is_given(arguments, "--dry-run")
    task, path = find_task_of(wanted, root, dry_run, may_be_group=True)
    # `latest` of all experiments need not be that of the task's own.
    return [task, *split_words(arguments, {"resume"})[1], "--resume", str(path)]


def configure(
    arguments: Sequence[str],
) -> tuple[FoundTask, TrainConfig, Resume | None, Wanted | None]:
    """Return the task, what is to be trained, and the run or the group that continues, if one does.

    Help is printed, which ends the process.

    Raises:
        UserError: the arguments ask for what there is not.
    """
    file, resumed = _base(arguments)
    place = run_at(resumed) if resumed else Path(file).parent if file else None
    own_tasks = place and tasks_dir_of(place)
    registry = discover(os.environ, peek(arguments, "--tasks-dir") or own_tasks)
    asks_for_help = bool({*HELP, LIST_FLAGS} & set(arguments))
    if not arguments or (arguments[0].startswith("-") and asks_for_help):
        _print_help(registry, arguments)
        sys.exit(0 if arguments else 2)
    name, flags = arguments[0], arguments[1:]
    if name.startswith("-"):
        task = peek(arguments, "--task") or "<task>"
        raise UserError(
            f"the task comes first: `train {task} ...`, unless the file of --config or the run of "
            "--resume names it. `train --help` lists tasks."
        )
    found = _find(registry, name, resumed, is_given(flags, "--as-trained"))
    wanted, resume = None if asks_for_help else _wanted(found, flags), None
    if wanted:
        data, place = wanted.config, wanted.run_dir
        file_name = f"--resume {wanted.path}: its config.yaml"
    else:
        data, file_name = read_config(file, task=name) if file else {}, f"--config {file}"
        _drop_names_of_others(data, name, registry)
    given = None if asks_for_help else _gives(flags, UNUSED if wanted else ())
    default = from_file(found, data, file_name, place and note_of(place), given)
    config = _parse(found, flags, default)
    config = with_teacher(config)
    group = wanted is not None and is_group(wanted.path)
    if wanted and not group:
        if config.seeds:
            raise UserError(
                f"--seeds is for new runs: leave it out, and --resume {wanted.path} goes on."
            )
        take_lock = not config.dry_run and os.environ.get("RANK", "0") == "0"
        recorded = from_dict(found.defaults(), wanted.config)
        resume, config = resume_or_fork(wanted, config, recorded, take_lock, found.folder)
    found.check_packages()
    if not config.seeds and "--seeds" in flags:
        raise UserError("--seeds has no number: give how many, or the seeds themselves.")
    agent = config.agent
    need_extra(agent.extra, f"--agent.library {agent.library}", agent.packages)
    return found, config, resume, wanted if group else None


def _wanted(found: FoundTask, flags: Sequence[str]) -> Wanted | None:
    """Find what `--resume` names, whose configuration the flags change."""
    wanted, init = peek(flags, "--resume"), peek(flags, "--init-from")
    if wanted is None:
        if init is not None and peek(flags, f"--{INIT_STD}") is not None:
            raise UserError(f"--{INIT_STD} and --init-from: give one; the policy has begun there.")
        return None
    if init is not None:
        raise UserError(
            "--resume and --init-from: give one; a run goes on from its own checkpoint, or begins "
            "anew with the networks of another."
        )
    default = found.defaults()
    log_root = peek(flags, "--log-root") or default.log_root
    experiment = peek(flags, "--agent.experiment-name") or default.agent.experiment_name
    folder, dry_run = Path(log_root, experiment), is_given(flags, "--dry-run")
    return find_wanted(wanted, found.name, folder, dry_run, may_be_group=True)


def _base(arguments: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the file to start from, or what `--resume` names."""
    file, wanted = peek(arguments, "--config"), peek(arguments, "--resume")
    if file is not None and wanted is not None:
        raise UserError(
            "--config and --resume: give one; a resumed run keeps its own configuration."
        )
    return file, wanted


def _find(registry: Registry, name: str, resumed: str | None, as_trained: bool) -> FoundTask:
    """Return a task as it is now, or the copy that a run keeps: if asked, or if it is nowhere."""
    run_dir = run_at(resumed) if resumed else None
    is_kept = run_dir and not is_group(run_dir) and record_of(run_dir)["task"] == name
    if resumed is None or not is_kept or (name in registry.tasks and not as_trained):
        return registry.find(name)
    checkpoint, _ = choose(Path(resumed))
    return find_task(name, own_snapshot(checkpoint or Path(resumed), name, as_trained).folder)


def _gives(arguments: Sequence[str], others: Container[str] = ()) -> IsGiven:
    """Return a function that tells whether arguments give a field; `others` need not be given."""
    return lambda name: name in others or bool(split_words(arguments, {name.replace("_", "-")})[0])


def _drop_names_of_others(data: dict[str, Any], task: str, registry: Registry) -> None:
    """Remove the names of experiment and run from the data of a file of another task's run.

    The file does not name its task; the experiment has the other task's name.
    """
    agent, others = data.get("agent"), [name for name in registry.tasks if name != task]
    if isinstance(agent, dict) and agent.get("experiment_name") in others:
        names = ("experiment_name", "run_name")
        data["agent"] = {name: value for name, value in agent.items() if name not in names}


def _parse(found: FoundTask, flags: Sequence[str], default: TrainConfig) -> TrainConfig:
    """Return a task's configuration, overridden by the flags."""
    if {"-h", "--help"} & set(flags):
        print_help(default, f"train {found.name}", found.task.summary)
        sys.exit()
    config = parse_flags(TrainConfig, flags, f"train {found.name}", default, found.task.summary)
    return settle(
        found, config, lambda name: peek(flags, f"--{name.replace('_', '-')}") is not None
    )


def settle(found: FoundTask, config: TrainConfig, is_given: Callable[[str], bool]) -> TrainConfig:
    """Return a configuration with what follows from its values, and from those that were given.

    Args:
        found: the task.
        config: the configuration.
        is_given: whether the user has given a field now, by its dotted name; the others come from
            the task or a file.

    Raises:
        UserError: two fields were given that say the same.
    """
    for total, (other, why) in EXCLUSIVE.items():
        if is_given(other):
            if is_given(total):
                one, two = (name.replace("_", "-") for name in (total, other))
                raise UserError(f"--{one} and --{two}: give one, {why}.")
            config = replace(config, **{total: None})
    if not config.agent.experiment_name:
        config = replace(config, agent=replace(config.agent, experiment_name=found.name))
    # Written into the run directory, these must be found from anywhere, and only what was meant.
    if config.ssh_config:
        config = replace(config, ssh_config=os.path.abspath(config.ssh_config))
    if (teacher := config.agent.teacher) and teacher.checkpoint:
        teacher = replace(teacher, checkpoint=os.path.abspath(teacher.checkpoint))
        config = replace(config, agent=replace(config.agent, teacher=teacher))
    folder = found.folder.parent
    is_usual = folder == bundled_tasks() or is_snapshot(found.folder)
    return replace(config, tasks_dir=None if is_usual else str(folder))


def _print_help(registry: Registry, arguments: Sequence[str]) -> None:
    """Print all tasks and the flags that they share: the common ones, or all with --help-all."""
    width = max((len(name) for name in registry.tasks), default=0)
    tasks = [f"  {name:<{width}}  {found.task.summary}" for name, found in registry.tasks.items()]
    tasks += [indent(text, "  ") for text in registry.broken.values()]
    description = (
        "Train a policy.\n\ntasks:\n"
        + "\n".join(tasks)
        + "\n\n`train <task> --help` shows the numbers of a task. These flags fit every task."
    )
    if {"--help-all", LIST_FLAGS} & set(arguments):
        with suppress(SystemExit):
            parse_flags(TrainConfig, arguments, "train <task>", TrainConfig(), description)
    else:
        print_help(TrainConfig(), "train <task>", description)


if __name__ == "__main__":
    main()
