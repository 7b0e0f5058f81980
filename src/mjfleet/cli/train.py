"""The command `train`, also `mjfleet train` and `python -m mjfleet.cli.train`."""

import json
import os
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import Any

from mjfleet.cli.help import print_help
from mjfleet.cli.run_command import run_and_exit
from mjfleet.config import LaunchConfig, TrainConfig, by_dotted_name, from_dict, to_dict
from mjfleet.config.flags import (
    HELP,
    LIST_FLAGS,
    parse_flags,
    parse_known,
    typed_fields,
    typed_text,
)
from mjfleet.config.train_config import ALGORITHM
from mjfleet.config.unused_fields import refuse_unused
from mjfleet.config.validation import is_class_path
from mjfleet.errors import UserError
from mjfleet.launch.devices import uses_gpus
from mjfleet.launch.hosts.host_environment import without_values
from mjfleet.registry import FoundTask, Registry, bundled_tasks, discover, find_task
from mjfleet.runs.config_yaml import (
    classes_in,
    from_file,
    from_typed_file,
    read_config,
    recorded_in,
)
from mjfleet.runs.find_run import refuse_log_root
from mjfleet.runs.named_run import networks_of, recorded_config, with_teacher
from mjfleet.runs.own_runs import note_of
from mjfleet.runs.read_facts import read_facts
from mjfleet.runs.run_files import pin_files
from mjfleet.runs.run_lock import RunLock
from mjfleet.runs.start import INIT_STD, NEW, Chosen, Start, compare, decide
from mjfleet.runs.task_snapshot import changes_since, is_snapshot
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
    """Parse the arguments and train; return the exit code.

    Raises:
        UserError: a mistake of the user's.
        WorkerError: the same where the command was started again, which is a fault.
    """
    os.environ.update(torchrun_variables(os.environ))
    task, flags = _split_task(arguments)
    if not arguments or {*HELP, LIST_FLAGS} & set(flags):
        _print_help(task, flags or ["--help"])
        return 0 if arguments else 2
    rank, typed_run = Rank.from_environ(os.environ) or Rank(), read_typed_run(flags)
    choose = partial(configure, arguments, typed_run=typed_run)
    if rank.world_size > 1 and not typed_run.dry_run:
        choose = partial(_choose_on_rank_0, rank, typed_run, choose)
    from mjfleet.launch.launch_training import launch_training  # Help does not wait for it.

    def train_group(chosen: Chosen) -> int:
        from mjfleet.groups.seeds import train_seeds

        return train_seeds(chosen)

    return launch_training(choose, train_group, typed_run, ["train", *without_values(arguments)])


def read_typed_run(flags: Sequence[str]) -> LaunchConfig:
    """Read the flags of the launch; those of the task and the agent are not looked at.

    Raises:
        UserError: two of them contradict each other, or a value is not allowed.
    """
    typed_run, _ = parse_known(LaunchConfig, flags, "train")
    resume, run_dir = typed_run.resume, typed_run.run_dir
    if resume is None and typed_run.fork:
        raise UserError("--fork begins a run from another one's checkpoint: add --resume RUN.")
    if resume is None and typed_run.as_trained and run_dir is None:
        raise UserError("--as-trained: add --resume RUN or --run-dir DIR, whose code is used.")
    for flag, value in (("--config", typed_run.config), ("--init-from", typed_run.init_from)):
        if value is not None and resume is not None:
            raise UserError(
                f"{flag} and --resume: give one; a run that continues has its own configuration "
                "and networks."
            )
    if resume is not None and run_dir is not None and not typed_run.fork:
        raise UserError(
            f"--resume continues {resume} in its own directory: leave out --run-dir, or add --fork "
            "to begin a run of its own there."
        )
    has_restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    if has_restarts and run_dir is None and Rank.from_environ(os.environ) and not typed_run.dry_run:
        raise UserError(
            "torchrun restarts these workers after a failure: add --run-dir DIR, where they then "
            "continue the run; without it, each restart would begin a new run."
        )
    return typed_run


def configure(
    arguments: Sequence[str],
    locks: list[RunLock] | None = None,
    typed_run: LaunchConfig | None = None,
) -> Chosen:
    """Return the task, what is to be trained, and where that starts.

    The lock of a run that continues is added to `locks`, if they are given; `typed_run` is what
    `read_typed_run` has returned, if it was called before.

    Raises:
        UserError: the arguments contradict each other, or name what does not exist.
    """
    task, flags = _split_task(arguments)
    typed_run, typed = typed_run or read_typed_run(flags), typed_fields(flags)
    file = read_config(typed_run.config, task=task) if typed_run.config else {}
    if file.get("seeds") and not typed_run.seeds:
        typed_run = from_dict(typed_run, {"seeds": file["seeds"]})
    argv = ["train", *without_values(arguments)]
    locks = [] if locks is None else locks
    registry, facts = read_facts(typed_run, task or "", argv, os.environ, locks)
    start, task = decide(typed_run, facts), facts.code.task
    found = find_task(task, start.code) if start.code else registry.find(task)
    algorithm = typed_text(flags, ALGORITHM)
    recorded, default = _under_the_flags(typed_run, start, found, file, typed, algorithm)
    config = parse_flags(TrainConfig, flags, f"train {found.name}", default)
    if "seeds" in typed and not config.seeds:
        raise UserError("--seeds has no number: give how many, or the seeds themselves.")
    if len(config.seeds) > 1 and "agent.seed" in typed:
        raise UserError("--seeds, which names the seeds, and --agent.seed: give one.")
    refuse_unused(config.agent, typed)
    if start.kind.startswith("new") and uses_gpus(config, os.environ):
        config = found.with_usual_on_gpu(config, {*typed, *by_dotted_name(file)})
    config = settle(found, config, typed.__contains__)
    if not (start.run_dir or config.run_dir):
        refuse_log_root(config.log_root, config.agent.experiment_name)
    config = pin_files(found, config, start.base, recorded)
    if start.kind.startswith("continue"):
        # The run has these in its configuration.
        config = replace(config, init_from=facts.init_from or config.init_from)
        config = replace(config, teacher=None if facts.teacher else config.teacher)
        algorithm = config.agent.algorithm.for_run(recorded.agent.algorithm)
        config = replace(config, agent=replace(config.agent, algorithm=algorithm))
    config = with_teacher(config, facts.teacher)
    if config.init_from and INIT_STD in typed:
        flag = INIT_STD.replace("_", "-")
        raise UserError(f"--{flag} and --init-from: give one; the other run decides it.")
    if config.init_from and start.kind.startswith("new"):
        parent = start.parent or networks_of(config, facts.init_from)
        checkpoint = start.checkpoint or Path(parent.checkpoint)
        start = replace(start, checkpoint=checkpoint, parent=parent)
        config = replace(config, init_from=parent.checkpoint)
    found.check_packages()
    agent = config.agent
    need_extra(agent.extra, f"--agent.library {agent.library}", agent.packages)
    is_learner_imported = agent.library != "rsl_rl" or any(map(is_class_path, agent.classes))
    if typed_run.dry_run and is_learner_imported:
        from mjfleet.rl.build_algorithm import load_classes

        load_classes(agent, found.load)
    changes = None
    if start.checkpoint and start.iteration != 0:
        changes = changes_since(start.checkpoint, found.folder, found.modules(agent.classes))
    start, lock = compare(start, config, recorded, changes), next(iter(locks), None)
    return Chosen(found=found, config=config, start=start, argv=argv, lock=lock)


def _under_the_flags(
    typed_run: LaunchConfig,
    start: Start,
    found: FoundTask,
    file: dict[str, Any],
    typed: Set[str],
    algorithm: str | None,
) -> tuple[TrainConfig, TrainConfig]:
    """Return the configuration of the run at the start, and what counts of it and of --config.

    Both have the fields of the `algorithm` that is typed, or else of the files'.
    """
    of = start.checkpoint if start.kind == "fork" else None
    data = recorded_config(start.base, of) if start.base else {}
    if any(map(is_class_path, [algorithm or "", *classes_in(data), *classes_in(file)])):
        from mjfleet.worker.thread_limits import prepare

        prepare()  # Their modules import torch.
    config = found.defaults(algorithm)
    if start.base:
        flag = "--run-dir" if typed_run.run_dir and start.kind != "fork" else "--resume"
        name, given = f"{flag} {start.base}: its config.yaml", {*typed, *UNUSED}.__contains__
        config = from_file(found, data, name, note_of(start.base), given, config)
    if typed_run.config is not None:
        name = f"--config {typed_run.config}"
        is_given = {*typed - {"config"}}.__contains__  # The flag does not stand for another file.
        config = from_typed_file(found, typed_run.config, file, name, is_given, config)
    return recorded_in(found, data, algorithm or config.agent.algorithm.name), config


def _choose_on_rank_0(
    rank: Rank,
    typed_run: LaunchConfig,
    choose: Callable[[list[RunLock]], Chosen],
    locks: list[RunLock],
) -> Chosen:
    """Return what rank 0 chooses. The others use the task in their own folders, if it is there.

    Raises:
        UserError: rank 0 has found a mistake of the user's.
        WorkerError: rank 0 has failed, or a worker has not come.
    """
    from mjfleet.worker.under_torchrun import decided_by_rank_0, meeting_store

    chosen = list[Chosen]()

    def decide() -> str:
        chosen.append(one := choose(locks))
        place = {"task": one.found.name, "folder": str(one.found.folder)}
        return json.dumps({**place, "config": to_dict(one.config), "start": to_dict(one.start)})

    timeout = timedelta(seconds=typed_run.collective_timeout)
    sent = json.loads(decided_by_rank_0(meeting_store(rank), rank, decide, timeout))
    if chosen:
        return chosen[0]
    task, folder = sent["task"], Path(sent["folder"])
    is_own = not is_snapshot(folder)
    own = discover(os.environ, typed_run.tasks_dir).tasks.get(task) if is_own else None
    found = own or find_task(task, folder)
    start = from_dict(NEW, sent["start"])
    return Chosen(found=found, config=found.with_values(sent["config"]), start=start)


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
    modules = (one.partition(":")[0] for one in config.agent.classes if is_class_path(one))
    places = (*filter(None, map(found.place_of, modules)), found.folder)
    folder = next((place for place in places if place != found.folder), found.folder.parent)
    is_usual = folder == bundled_tasks() or is_snapshot(found.folder)
    return replace(config, tasks_dir=None if is_usual else str(folder))


def _print_help(task: str | None, flags: Sequence[str]) -> None:
    """Print the common flags and a task's own; all of them with --help-all and LIST_FLAGS."""
    typed_run = read_typed_run(flags)
    registry = discover(os.environ, typed_run.tasks_dir)
    if task is None:
        default, prog, text = TrainConfig(), "train <task>", _tasks(registry)
    else:
        found = registry.find(task)
        algorithm = typed_text(flags, ALGORITHM)
        default, prog, text = found.defaults(algorithm), f"train {task}", found.task.summary
        if typed_run.config:
            data = read_config(typed_run.config, task=task)
            name = f"--config {typed_run.config}"
            is_given = (lambda _: True) if algorithm else None  # Help needs no more than that.
            default = from_file(found, data, name, None, is_given, default)
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
