"""Reads the facts for `decide` when a command starts; locks the run that may continue."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mjfleet.config import LaunchConfig, from_dict
from mjfleet.config.dict_conversion import value_at
from mjfleet.errors import UserError
from mjfleet.registry import FoundTask, Registry, discover
from mjfleet.runs.attempts import ended_attempts
from mjfleet.runs.config_yaml import task_of
from mjfleet.runs.find_run import find_run, is_of_this_user
from mjfleet.runs.metrics_csv import METRICS_FILE, completed_iterations
from mjfleet.runs.named_run import NamedRun, Parent, read_run
from mjfleet.runs.own_runs import tasks_dir_of
from mjfleet.runs.run_directory import refuse_written
from mjfleet.runs.run_json import RECORD_FILE, is_group
from mjfleet.runs.run_lock import BRIEF_SECONDS, REQUEUE_SECONDS, RunLock, lock_again
from mjfleet.runs.start import Again, CodeFacts, Facts, InRunDir
from mjfleet.runs.task_snapshot import Snapshot, snapshot_of

Look = Callable[..., tuple[Any, NamedRun]]
NO_TASK = (
    "the task comes first: `train <task> ...` or `mjfleet sweep <task> ...`, unless the file of "
    "--config or the run of --resume or --run-dir names it. `mjfleet tasks` lists tasks."
)
NO_TASK_IN_FILE = (
    "--config {0} names no task: add a line such as `task: cartpole-balance`, or name the task "
    "first: train <task> --config {0}"
)
NO_TASK_ANEW = (
    "--run-dir {}: the run there has no checkpoint and begins anew: type the whole command, with "
    "the task."
)


def read_facts(
    typed_run: LaunchConfig,
    task: str,
    argv: Sequence[str],
    environ: Mapping[str, str],
    locks: list[RunLock],
    trained: FoundTask | None = None,
) -> tuple[Registry, Facts]:
    """Return the tasks that are there, and the facts; lock the run that may continue.

    `task` is what was typed, or empty; `argv` is the command, as run.json records it. The lock is
    added to `locks`; there is none in a dry run, or of another user's run. `trained` is the task
    that this process has trained, which starts again after a fault.

    Raises:
        UserError: what is named does not exist, is damaged or is being trained; no task is named.
    """
    is_restart = bool(trained) or again_of(None, argv, environ) == "restart"
    look = partial(_look, typed_run, is_restart, locks)
    in_run_dir, run = _in_run_dir(typed_run.run_dir, look)
    record, word = run.record if run else {}, typed_run.resume or typed_run.init_from
    source, source_run, parent = "none", None, None
    recorded = _recorded(record, "parent", word, typed_run.resume is None)
    if in_run_dir in ("run", "group"):
        source = "other" if word and not recorded else "none"
    elif typed_run.resume and in_run_dir != "theirs":
        flag, root = f"--resume {typed_run.resume}", Path(typed_run.log_root)
        wanted = recorded or typed_run.resume
        path = find_run(wanted, flag, root, task=task or None, may_be_group=True)
        source, source_run = look(path, flag, not typed_run.fork)
        if source_run.checkpoint and (typed_run.fork or source == "file"):
            parent = source_run.as_parent(typed_run.resume, source_run.is_untrained)
    elif recorded and run and not os.path.exists(recorded) and run.initial.exists():
        parent = from_dict(Parent(), record["parent"])  # Its networks are in the copy.
    origin = source_run if in_run_dir in ("none", "unlearned") else run
    file = typed_run.config
    task = task or (task_of(file) if file else "") or (origin.task if origin else "")
    if not task and file:
        raise UserError(NO_TASK_IN_FILE.format(file))
    if not task:
        raise UserError(NO_TASK if run is None else NO_TASK_ANEW.format(run.path))
    place = Path(file).parent if file else origin and origin.run_dir
    tasks_dir = typed_run.tasks_dir or (place and tasks_dir_of(place))
    registry = Registry({task: trained}) if trained else discover(environ, tasks_dir)
    in_place = origin.run_dir if origin and (origin is run or not typed_run.fork) else None
    code_of = origin.checkpoint if origin and origin.run_dir else None
    if origin and (origin.is_untrained or (in_place and is_restart)):
        code_of = origin.run_dir
    return registry, Facts(
        in_run_dir=in_run_dir,
        source=source,
        again="restart" if is_restart else again_of(in_place, argv, environ),
        code=read_code_facts(registry, task, code_of, typed_run.as_trained or is_restart),
        run_in_run_dir=run,
        source_run=source_run,
        parent=parent,
        init_from=None if typed_run.resume else recorded,
        teacher=_recorded(record, "teacher", typed_run.teacher),
    )


def read_code_facts(
    registry: Registry, task: str, source: Path | None, is_asked: bool
) -> CodeFacts:
    """Return whether a task is found, and the copy of its code that a run or checkpoint has.

    The copy is looked at where it `is_asked` for, or no task is found.
    """
    why = registry.why_missing(task)
    copy = snapshot_of(source) if source and (is_asked or why) else Snapshot(why_none=why)
    return CodeFacts(task=task, why_no_task=why, source=source, copy=copy)


def again_of(run_dir: Path | None, argv: Sequence[str], environ: Mapping[str, str]) -> Again:
    """Return whether torchrun or SLURM started a command again, or the same one has learned."""
    counts = (environ.get(f"{who}_RESTART_COUNT", "0") for who in ("TORCHELASTIC", "SLURM"))
    if any(count not in ("", "0") for count in counts):
        return "restart"
    if run_dir is None:
        return "typed"
    with suppress(OSError, ValueError, LookupError, UserError):
        attempts = ended_attempts(run_dir)
        learned = [one for one in attempts if one["iterations"] and not one.get("is_undone")]
        if any(one["argv"] == argv for one in learned):
            return "same"
    return "typed"


def _in_run_dir(name: str | None, look: Look) -> tuple[InRunDir, NamedRun | None]:
    """Return the kind of --run-dir, and the run or group in it."""
    folder = Path(name or "")
    if name is None:
        return "none", None
    if not (is_group(folder) or os.path.lexists(folder / RECORD_FILE)):
        refuse_written(folder)
        return "none", None
    kind, run = look(folder, f"--run-dir {name}", True, REQUEUE_SECONDS)
    return "unlearned" if kind == "run" and run.is_untrained else kind, run


def _look(
    typed_run: LaunchConfig,
    is_restart: bool,
    locks: list[RunLock],
    path: Path,
    name: str,
    in_place: bool,
    patience: float = BRIEF_SECONDS,
) -> tuple[Any, NamedRun]:
    """Return the kind of a path: one of InRunDir or Source.

    What continues `in_place` is locked, and has to be this user's.
    """
    run = read_run(path, name)
    if run.run_dir is None:
        return "file", run.with_checkpoint()
    if in_place and not is_of_this_user(run.run_dir):
        return "theirs", run
    is_locked = in_place and not typed_run.dry_run
    if is_locked and (lock := lock_again(run.run_dir, patience)):
        locks.append(lock)
        run = read_run(path, name)  # Nobody changes it any more.
    if is_group(path):
        return "group", run
    run = run.with_checkpoint(in_place and is_restart)
    run = _with_rows_counted(run) if in_place else run
    return "run" if run.checkpoint else "unlearned", run


def _recorded(
    record: Mapping[str, Any], entry: str, word: str | None, networks_only: bool = False
) -> str | None:
    """Return the checkpoint that a word stood for when a run began; None: another word did.

    `latest` may mean another run by now.
    """
    recorded = record.get(entry, {})
    is_kind = bool(recorded.get("networks_only")) == networks_only
    is_same = recorded.get("typed") == word and is_kind
    checkpoint = recorded.get("checkpoint")
    return checkpoint if word and is_same and isinstance(checkpoint, str) else None


def _with_rows_counted(run: NamedRun) -> NamedRun:
    """Return a run with a note if metrics.csv has no rows up to its checkpoint.

    Iterations of the parent, from whose checkpoint the run began, are not in it. UserError if
    metrics.csv is a folder.
    """
    assert run.run_dir
    if (run.run_dir / METRICS_FILE).is_dir():
        file = run.run_dir / METRICS_FILE
        raise UserError(f"{file} is a folder; it must be a file: move it away.")
    before = value_at(run.record, "parent.iteration", 0)
    with suppress(OSError):  # Refuse what is no file of a run before anything is written.
        rows = max(completed_iterations(run.run_dir), before if isinstance(before, int) else 0)
        if (missing := (run.iteration or 0) - rows) > 0:
            note = f"{METRICS_FILE} lacks the rows of the last {missing} iterations"
            return replace(run, notes=(note, *run.notes))
    return run
