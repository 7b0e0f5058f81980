"""The command `train`, also `mjfleet train` and `python -m mjfleet.cli.train`.

Runs in the launcher, and in each worker that torchrun, srun or mpirun has started.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any

import tyro

from mjfleet.cli.help import print_help
from mjfleet.cli.run_command import run_command
from mjfleet.config import TrainConfig, from_dict, to_dict
from mjfleet.config.flags import HELP, LIST_FLAGS, parse_flags, typed_fields
from mjfleet.errors import UserError
from mjfleet.registry import FoundTask, Registry, bundled_tasks, discover, find_task
from mjfleet.runs.beginning import (
    begin_from,
    continue_run,
    first_meaning,
    fork,
    has_learned,
    refuse_other_parent,
    refuse_other_user,
    with_teacher,
)
from mjfleet.runs.config_yaml import IsGiven, from_file, read_config, task_of
from mjfleet.runs.own_runs import note_of, tasks_dir_of
from mjfleet.runs.resume_choice import (
    Parent,
    Resume,
    check_task,
    read_record_of,
    read_run,
)
from mjfleet.runs.resumed_attempt import undone_checkpoint
from mjfleet.runs.run_directory import refuse_written
from mjfleet.runs.run_json import GROUP_FILE, RECORD_FILE
from mjfleet.runs.run_lock import REQUEUE_SECONDS, lock_run
from mjfleet.runs.run_lookup import find_run, is_group
from mjfleet.runs.task_snapshot import is_snapshot, own_snapshot, snapshot_of
from mjfleet.utils.packages import need_extra
from mjfleet.worker.rank_environment import Rank, torchrun_variables

UNUSED = ("log_root", "init_from")  # Of a run's configuration, where the run continues.
INIT_STD = "agent.actor.distribution.init_std"
EXCLUSIVE = {
    "total_envs": ("env.num_envs", "for all workers or for each"),
    "total_steps": (
        "agent.max_iterations", "the length of training in steps of all workers or in iterations",
    ),
}  # fmt: skip
"""Fields that say the same as another one, which replaces them if it is given alone."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """The flags that say where a configuration comes from. They are read before all others."""

    task: str | None = None  # A mistake, which is answered.
    config: str | None = None
    resume: str | None = None
    fork: bool = False
    run_dir: str | None = None
    init_from: str | None = None
    teacher: str | None = None
    tasks_dir: str | None = None
    as_trained: bool = False
    log_root: str = TrainConfig().log_root
    experiment: Annotated[str | None, tyro.conf.arg(name="agent.experiment-name")] = None
    collective_timeout: float = TrainConfig().collective_timeout
    dry_run: bool = False

    @classmethod
    def read(cls, arguments: Sequence[str]) -> "Start":
        """Read them; the values of others are not looked at.

        Raises:
            UserError: two of them contradict each other.
        """
        start, _ = tyro.cli(cls, args=arguments, return_unknown_args=True, add_help=False)
        if start.fork and start.resume is None:
            raise UserError("--fork begins a run from another one's checkpoint: add --resume RUN.")
        if start.as_trained and start.resume is None and start.run_dir is None:
            raise UserError("--as-trained: add --resume RUN or --run-dir DIR, whose code is used.")
        if start.resume is None:
            return start
        if start.config is not None:
            raise UserError(
                "--config and --resume: give one; a resumed run keeps its own configuration."
            )
        if start.init_from is not None:
            raise UserError(
                "--resume and --init-from: give one; a run continues from its own checkpoint, or "
                "begins anew with the networks of another."
            )
        if start.run_dir is not None and not start.fork:
            raise UserError(
                f"--resume continues {start.resume} in its own directory: leave out --run-dir, or "
                "add --fork to begin a run of its own there."
            )
        return start


def main() -> None:
    """Run the command line `train`."""
    sys.exit(run_command(train, sys.argv[1:]))


def train(arguments: Sequence[str]) -> int:
    """Parse the arguments and train; return the exit code."""
    os.environ.update(torchrun_variables(os.environ))
    rank = Rank.from_environ(os.environ)
    if rank is None or rank.world_size == 1 or {*HELP, LIST_FLAGS} & set(arguments):
        found, config, resume = configure(arguments)
    else:
        found, config, resume = _configure_together(arguments, rank)
    # Help does not wait for these imports.
    group = resume if resume and is_group(resume.path) else None
    if group or config.seeds:
        from mjfleet.groups.seeds import train_seeds

        return train_seeds(found, config, arguments, group)
    if config.per_run is not None:
        raise UserError(f"--per-run {config.per_run} is for several runs: add --seeds.")
    from mjfleet.launch.launch_training import launch_training

    return launch_training(found, config, resume, arguments)


def configure(arguments: Sequence[str]) -> tuple[FoundTask, TrainConfig, Resume | None]:
    """Return the task, what is to be trained, and the run or group from which that continues.

    Help is printed, which ends the process. A run that continues is locked.

    Raises:
        UserError: the arguments ask for what there is not.
    """
    task, flags = _split_task(arguments)
    start, typed = Start.read(flags), typed_fields(flags)
    if wants_help := bool({*HELP, LIST_FLAGS} & set(flags)) or not arguments:
        start = replace(start, resume=None, run_dir=None)
        if task is None:
            _print_help(discover(os.environ, start.tasks_dir), flags)
            sys.exit(0 if arguments else 2)

    def gives(name: str) -> bool:
        return wants_help or name in typed or (not start.config and name in UNUSED)

    here = _run_in(Path(start.run_dir), start.dry_run) if start.run_dir else None
    with ExitStack() as on_error:
        if here and here.lock:
            on_error.callback(here.lock.close)
        chosen = _configure(task, flags, start, here, gives)
        on_error.pop_all()
        return chosen


def _configure(
    task: str | None,
    flags: Sequence[str],
    start: Start,
    here: Resume | None,
    gives: IsGiven,
) -> tuple[FoundTask, TrainConfig, Resume | None]:
    """Do the work of `configure`; `here` is the run in --run-dir."""
    typed = typed_fields(flags)
    start = _as_first_meant(here, start)
    named = here if here and _is_continued(here) else _named(start, task)
    file = read_config(start.config, task=task) if start.config else {}
    task = task or (named.task if named else start.config and task_of(start.config))
    if named and not task:
        raise UserError(f"--resume {named.path} does not name its task: type the task first.")
    if not task:
        raise UserError(
            f"the task comes first: `train {start.task or '<task>'} ...`, unless the file of "
            "--config or the run of --resume or --run-dir names it. `train --help` lists tasks."
        )
    place = Path(start.config).parent if start.config else named and named.run_dir
    registry = discover(os.environ, start.tasks_dir or (place and tasks_dir_of(place)))
    found = _find_task(registry, task, named, start)
    flag = "--run-dir " if here and named is here else "--resume "
    if named:
        check_task(named, found.name, flag)
    else:
        _drop_names_of_others(file, found.name, registry)
    default = found.defaults()
    if named and named.run_dir:
        name = f"{flag}{named.path}: its config.yaml"
        default = from_file(found, named.config, name, note_of(named.run_dir), gives)
    if start.config:
        note, name = note_of(Path(start.config).parent), f"--config {start.config}"
        default = from_file(found, file, name, note, gives, default)
    config = _parse(found, flags, default)
    if here and named is here and start.teacher != config.teacher:
        config = replace(config, teacher=None)  # The run has it in its configuration.
    config = with_teacher(config, start.teacher)
    if not config.seeds and "seeds" in typed:
        raise UserError("--seeds has no number: give how many, or the seeds themselves.")
    found.check_packages()
    agent = config.agent
    need_extra(agent.extra, f"--agent.library {agent.library}", agent.packages)
    if config.init_from and INIT_STD in typed:
        raise UserError(
            "--agent.actor.distribution.init-std and --init-from: give one; the policy has begun "
            "there."
        )
    if (named and is_group(named.path)) or (named is None and config.seeds):
        return found, config, named
    if config.seeds:
        raise UserError(f"--seeds is for several runs, and {start.run_dir or start.resume} is one.")
    return found, *_start_from(found, config, here, named, start)


def _start_from(
    found: FoundTask, config: TrainConfig, here: Resume | None, named: Resume | None, start: Start
) -> tuple[TrainConfig, Resume | None]:
    """Return the configuration, and from where the run starts; None: it is new.

    `here` is the run in --run-dir, `named` the one that continues or is the parent.
    """
    resume = None
    if named:
        recorded = from_dict(found.defaults(), named.config)
        in_place = named.run_dir and (named is here or not start.fork)
        if here and named is here:
            for flag in ("resume", "init_from"):
                if (word := getattr(start, flag)) and word == getattr(config, flag):
                    place = Path(config.log_root), start.experiment
                    refuse_other_parent(here, flag, word, place)
        if here and named is here and _is_restart(os.environ):
            path = undone_checkpoint(here.path) or here.path
            resume = replace(here, path=path, is_restart=True)
        start_run = continue_run if in_place else fork
        resume, config = start_run(resume or named, config, recorded, found.folder)
    elif config.init_from:
        resume, config = begin_from(config, start.init_from)
    if here and named is not here:  # It has learned nothing, and begins anew in its directory.
        notes = () if resume is None else resume.notes
        note = f"{here.path} has no checkpoint yet: it begins anew"
        resume = replace(resume or here, run_dir=here.path, lock=here.lock, notes=(note, *notes))
    return config, resume


def _is_restart(environ: Mapping[str, str]) -> bool:
    """Return whether torchrun or SLURM has started the command again."""
    counts = (environ.get(f"{who}_RESTART_COUNT", "0") for who in ("TORCHELASTIC", "SLURM"))
    return any(count not in ("", "0") for count in counts)


def _run_in(run_dir: Path, dry_run: bool) -> Resume | None:
    """Return the run or the group in --run-dir; None if a run can begin there.

    The run is locked before it is read, unless this is a dry run. The configuration of one that has
    learned nothing does not count.
    """
    if not any(os.path.lexists(run_dir / name) for name in (RECORD_FILE, GROUP_FILE)):
        refuse_written(run_dir)
        return None
    flag = f"--run-dir {run_dir}"
    if is_group(run_dir):
        return read_run(run_dir, flag)
    refuse_other_user(run_dir, flag)
    lock = None if dry_run else lock_run(run_dir, REQUEUE_SECONDS)
    try:
        if has_learned(run_dir):
            return replace(read_run(run_dir, flag), lock=lock)
        record = read_record_of(run_dir, "--run-dir ")
        return Resume(path=run_dir, task=record["task"], run_dir=run_dir, record=record, lock=lock)
    except BaseException:
        if lock:
            lock.close()
        raise


def _is_continued(here: Resume) -> bool:
    return is_group(here.path) or has_learned(here.path)


def _named(start: Start, task: str | None) -> Resume | None:
    """Return what --resume names."""
    if start.resume is None:
        return None
    name, root = f"--resume {start.resume}", Path(start.log_root)
    place = root, start.experiment, task
    path = find_run(start.resume, name, *place, start.dry_run, may_be_group=True)
    return read_run(path, name)


def _as_first_meant(here: Resume | None, start: Start) -> Start:
    """Return the flags with what their words meant at the first start of the run in --run-dir."""
    words = {name: getattr(start, name) for name in ("resume", "init_from", "teacher")}
    if here is None:
        return start
    meant = {n: first_meaning(here, n, word) for n, word in words.items() if word is not None}
    return replace(start, **meant)


def _find_task(registry: Registry, task: str, named: Resume | None, start: Start) -> FoundTask:
    """Return a task as it is now, or the copy of its code that a run keeps.

    That is used if the user has asked for it, if the task is nowhere else, and if something has
    started a run again that this installation has begun.
    """
    if not (named and named.run_dir and named.task == task) or is_group(named.path):
        return registry.find(task)
    if task in registry.tasks and not start.as_trained:
        with suppress(UserError):
            snapshot = snapshot_of(named.run_dir)
            if start.run_dir and _is_restart(os.environ) and snapshot.is_own:
                return find_task(task, snapshot.folder)
        return registry.tasks[task]
    source = named.with_checkpoint().checkpoint or named.run_dir
    return find_task(task, own_snapshot(source, task, start.as_trained).folder)


def _configure_together(
    arguments: Sequence[str], rank: Rank
) -> tuple[FoundTask, TrainConfig, Resume | None]:
    """Return what `configure` returns on rank 0, which alone decides and tells the others."""
    start = Start.read(_split_task(arguments)[1])
    if start.dry_run:
        return configure(arguments)
    if os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0" and not start.run_dir:
        raise UserError(
            "torchrun is to start these workers again after a failure: add --run-dir DIR, in which "
            "they begin and then continue; without it they would begin anew."
        )
    decided = list[tuple[FoundTask, TrainConfig, Resume | None]]()

    def decide() -> str:
        found, config, resume = configure(arguments)
        decided.append((found, config, resume))
        decision: dict[str, Any] = {
            "task": found.name, "folder": str(found.folder), "config": to_dict(config),
        }  # fmt: skip
        if resume:
            decision |= {
                "run_dir": resume.run_dir,
                "checkpoint": resume.checkpoint,
                "parent": resume.parent and asdict(resume.parent),
            }
        return json.dumps(decision, default=str)

    from mjfleet.worker.under_torchrun import decided_by_rank_0, meeting_store

    timeout = timedelta(seconds=start.collective_timeout)
    decision = decided_by_rank_0(meeting_store(rank), rank, decide, timeout)
    if decided:
        return decided[0]
    known = json.loads(decision)
    registry = discover(os.environ, start.tasks_dir)
    task, folder = known["task"], Path(known["folder"])
    found = registry.tasks.get(task) or find_task(task, folder)
    config = from_dict(found.defaults(), known["config"])
    if "run_dir" not in known:
        return found, config, None
    run_dir, checkpoint = (known[n] and Path(known[n]) for n in ("run_dir", "checkpoint"))
    parent = known["parent"] and Parent(**known["parent"])
    path = run_dir or checkpoint
    resume = Resume(path=path, task=task, run_dir=run_dir, checkpoint=checkpoint, parent=parent)
    return found, config, resume


def _split_task(arguments: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """Return the task, which comes first, and the flags."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    return None, arguments


def with_task(arguments: Sequence[str]) -> Sequence[str]:
    """Return the arguments with the task that the file of --config names, if they name none."""
    task, flags = _split_task(arguments)
    if task or {*HELP, LIST_FLAGS} & set(flags) or not (file := Start.read(flags).config):
        return arguments
    return [task_of(file), *flags]


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
    return settle(found, config, typed_fields(flags).__contains__)


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
