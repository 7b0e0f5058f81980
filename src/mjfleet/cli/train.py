"""The command `train`, also `mjfleet train` and `python -m mjfleet.cli.train`."""

import os
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import Any

from mjfleet.cli.decide_on_rank_0 import Chosen, choose_on_rank_0
from mjfleet.cli.help import print_help
from mjfleet.cli.run_command import run_and_exit
from mjfleet.cli.start import Sources, find_code, find_sources, read_start, start_from
from mjfleet.config import TrainConfig
from mjfleet.config.field_kinds import Kind
from mjfleet.config.flags import HELP, LIST_FLAGS, parse_flags, typed_fields
from mjfleet.config.train_config import field_kinds
from mjfleet.config.unused_fields import refuse_unused
from mjfleet.config.validation import is_class_path
from mjfleet.errors import UserError
from mjfleet.registry import FoundTask, Registry, bundled_tasks, discover
from mjfleet.runs.config_yaml import from_file, read_config, task_of
from mjfleet.runs.own_runs import note_of, tasks_dir_of
from mjfleet.runs.resume_choice import check_task
from mjfleet.runs.run_json import is_group
from mjfleet.runs.starting_point import INIT_STD, with_teacher
from mjfleet.runs.task_snapshot import is_snapshot
from mjfleet.utils.packages import need_extra
from mjfleet.worker.rank_environment import Rank, torchrun_variables

UNUSED = ("log_root", "init_from")  # Fields without effect where a run continues.
EXCLUSIVE = {
    "total_envs": ("env.num_envs", "for all workers or for each"),
    "total_steps": (
        "agent.max_iterations", "the length of training in steps of all workers or in iterations",
    ),
}  # fmt: skip
"""Fields that say the same as another one, which replaces them if it is given alone."""


def main() -> None:
    run_and_exit(train)


def train(arguments: Sequence[str]) -> int:
    """Parse the arguments and train; return the exit code."""
    os.environ.update(torchrun_variables(os.environ))
    task, flags = _split_task(arguments)
    if not arguments or {*HELP, LIST_FLAGS} & set(flags):
        _print_help(task, flags or ["--help"])
        return 0 if arguments else 2
    rank, start = Rank.from_environ(os.environ), read_start(flags)
    if rank is None or start.dry_run:
        found, config, resume = configure(arguments)
    elif not start.run_dir and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0":
        raise UserError(
            "torchrun is to start these workers again after a failure: add --run-dir DIR, in which "
            "they begin and then continue; without it they would begin anew."
        )
    else:
        found, config, resume = choose_on_rank_0(rank, start, partial(configure, arguments))
    # Help does not wait for these imports.
    group = resume if resume and is_group(resume.path) else None
    if group or config.seeds:
        from mjfleet.groups.seeds import train_seeds

        return train_seeds(found, config, arguments, group)
    if config.per_run is not None:
        raise UserError(f"--per-run {config.per_run} is for several runs: add --seeds.")
    from mjfleet.launch.launch_training import launch_training

    return launch_training(found, config, resume, arguments)


def configure(arguments: Sequence[str]) -> Chosen:
    """Return the task, what is to be trained, and the run or group from which that starts.

    A run that continues is locked.

    Raises:
        UserError: the arguments contradict each other, or name what does not exist.
    """
    task, flags = _split_task(arguments)
    start, typed = read_start(flags), typed_fields(flags)
    sources = find_sources(start, task)
    origin, file = sources.origin, read_config(start.config, task=task) if start.config else {}
    task = task or (origin.task if origin else start.config and task_of(start.config))
    if not task:
        if sources.present:
            raise UserError(
                f"--run-dir {sources.present.path}: the run there has no checkpoint and begins "
                "anew: type the whole command, with the task."
            )
        raise UserError(
            "the task comes first: `train <task> ...`, unless the file of --config or the run of "
            "--resume or --run-dir names it. `train --help` lists tasks."
        )
    place = Path(start.config).parent if start.config else origin and origin.run_dir
    registry = discover(os.environ, start.tasks_dir or (place and tasks_dir_of(place)))
    found = find_code(registry, task, sources)
    if origin:
        check_task(origin, found.name, "--run-dir " if sources.is_continued else "--resume ")
    default = _recorded(found, sources, file, typed)
    config = parse_flags(TrainConfig, flags, f"train {found.name}", default)
    if "seeds" in typed and not config.seeds:
        raise UserError("--seeds has no number: give how many, or the seeds themselves.")
    if len(config.seeds) > 1 and "agent.seed" in typed:
        raise UserError("--seeds, which names the seeds, and --agent.seed: give one.")
    # Groups and the Python API give what does not count in a file beside it, whether used or not.
    kinds = field_kinds() if start.config else {}
    refuse_unused(config.agent, [n for n in typed if kinds.get(n) is not Kind.PLACEMENT])
    config = settle(found, config, typed.__contains__)
    if sources.is_continued and sources.start.teacher != config.teacher:
        config = replace(config, teacher=None)  # The run has it in its configuration.
    config = with_teacher(config, sources.start.teacher)
    if config.init_from and INIT_STD in typed:
        flag = INIT_STD.replace("_", "-")
        raise UserError(f"--{flag} and --init-from: give one; the policy has begun there.")
    found.check_packages()
    agent = config.agent
    need_extra(agent.extra, f"--agent.library {agent.library}", agent.packages)
    if start.dry_run and any(map(is_class_path, agent.classes)):
        from mjfleet.rl.build_algorithm import load_classes

        load_classes(agent, found.load)
    if (origin and is_group(origin.path)) or (origin is None and config.seeds):
        return found, config, origin
    if config.seeds:
        raise UserError(f"--seeds is for several runs, and {start.run_dir or start.resume} is one.")
    return found, *start_from(sources, found, config)


def _recorded(
    found: FoundTask, sources: Sources, file: dict[str, Any], typed: Set[str]
) -> TrainConfig:
    """Return a task's configuration with that of the run of origin, then with the --config file."""
    config, origin, path = found.defaults(), sources.origin, sources.start.config
    if origin and origin.run_dir:
        flag = "--run-dir" if sources.is_continued else "--resume"
        name, note = f"{flag} {origin.path}: its config.yaml", note_of(origin.run_dir)
        config = from_file(found, origin.config, name, note, {*typed, *UNUSED}.__contains__)
    if path is not None:
        note = note_of(Path(path).parent)
        config = from_file(found, file, f"--config {path}", note, typed.__contains__, config)
    return config


def _split_task(arguments: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """Return the task, which comes first, and the flags."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    return None, arguments


def settle(found: FoundTask, config: TrainConfig, is_given: Callable[[str], bool]) -> TrainConfig:
    """Return a configuration with what follows from its values, and from those that were given.

    `is_given` says whether the user has given a field now, by its dotted name.

    Raises:
        UserError: two fields were given that say the same.
    """
    for total, (other, why) in EXCLUSIVE.items():
        if is_given(other):
            if is_given(total) and getattr(config, total) is not None:
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


def _print_help(task: str | None, flags: Sequence[str]) -> None:
    """Print the common flags and a task's own; all of them with --help-all and LIST_FLAGS."""
    start = read_start(flags)
    registry = discover(os.environ, start.tasks_dir)
    if task is None:
        default, prog, text = TrainConfig(), "train <task>", _tasks(registry)
    else:
        found = registry.find(task)
        default, prog, text = found.defaults(), f"train {task}", found.task.summary
        if start.config:
            data, name = read_config(start.config, task=task), f"--config {start.config}"
            default = from_file(found, data, name)
    if {"-h", "--help"} & set(flags):
        print_help(default, prog, text)
    else:
        with suppress(SystemExit):
            parse_flags(TrainConfig, flags, prog, default, text)


def _tasks(registry: Registry) -> str:
    width = max(map(len, registry.tasks), default=0)
    tasks = [f"  {name:<{width}}  {found.task.summary}" for name, found in registry.tasks.items()]
    tasks += [indent(text, "  ") for text in registry.broken.values()]
    flags = "`train <task> --help` shows the numbers of a task. These flags fit every task."
    return "\n".join(["Train a policy.\n\ntasks:", *tasks, f"\n{flags}"])


if __name__ == "__main__":
    main()
