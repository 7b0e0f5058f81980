"""Chooses the run and the checkpoint that `--resume` or a run's name means. Imports no torch."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mjfleet.errors import UserError
from mjfleet.runs.checkpoint_archive import about, why_damaged
from mjfleet.runs.checkpoint_names import INIT, checkpoints_in, iteration_of
from mjfleet.runs.config_yaml import CONFIG_FILE, read_config
from mjfleet.runs.pretrained import PLAYED, config_in
from mjfleet.runs.run_directory import lock_run
from mjfleet.runs.run_json import GROUP_FILE, RECORD_FILE
from mjfleet.runs.run_lookup import LATEST, find_run, is_group, record_of

FLAG = "--resume "  # How messages name what the user typed.


@dataclass(frozen=True)
class Wanted:
    """What `--resume` names."""

    path: Path  # A run directory, a group's folder, or a checkpoint.
    run_dir: Path | None  # The same unless it is a checkpoint. None: that is in no run directory.
    config: dict[str, Any]  # The configuration of that run, empty without a run directory.


@dataclass(frozen=True, kw_only=True)
class Parent:
    """Where a run of its own began that was trained from another run's checkpoint."""

    run: str | None  # Experiment and name; None: the checkpoint was in no run directory.
    checkpoint: str | None  # Its path; None: the other run had none yet.
    iteration: int | None  # Iterations done in it; None: unknown.
    networks_only: bool = False  # Whether it took nothing else of the checkpoint.
    changed: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`value`, and the `parent`'s, of what differs from the other run, by dotted name."""
    id: str | None = None  # Of the other run.


@dataclass(frozen=True)
class Resume:
    """Where a run continues."""

    run_dir: Path | None  # The run that continues. None: a new run begins from the checkpoint.
    checkpoint: Path | None  # None: the run has no checkpoint yet and starts from the beginning.
    config: dict[str, Any]  # The configuration of that run, empty without a run directory.
    notes: tuple[str, ...] = ()  # What the user should know about the choice.
    lock: int | None = None  # Open descriptor that keeps other processes from continuing the run.
    is_restart: bool = False  # Whether the run continues by itself, after a fault.
    parent: Parent | None = None  # Of a new run.

    @property
    def iteration(self) -> int | None:
        """Iterations done, if the checkpoint tells them; 0 where training begins anew."""
        return iteration_in(self.checkpoint) if self.checkpoint and not self.networks_only else 0

    @property
    def networks_only(self) -> bool:
        """Whether nothing but networks is taken of the checkpoint."""
        is_init = self.checkpoint is not None and self.checkpoint.name == INIT
        return is_init or (self.parent is not None and self.parent.networks_only)


@dataclass(frozen=True)
class Trained(Resume):
    """A policy that a run has learned."""

    run_dir: Path
    checkpoint: Path


def find_wanted(
    wanted: str,
    task: str,
    experiment: Path,
    dry_run: bool = False,
    may_be_group: bool = False,
) -> Wanted:
    """Return what `--resume` names: a path, or a word for a run that `find_run` knows.

    `latest` looks for runs in the folder `experiment`, below the log root. `dry_run` and
    `may_be_group` are as for `find_run`.

    Raises:
        UserError: the run or file does not exist, or belongs to another task.
    """
    root, name = experiment.parent, experiment.name
    path = find_run(wanted, FLAG + wanted, root, name, task, dry_run, may_be_group)
    run_dir = run_of_file(path, FLAG + wanted)
    if path.name == INIT:
        raise UserError(f"{FLAG}{wanted} is what the run began with: name the run itself.")
    if run_dir is None:
        # What the user names may be a link.
        path = Path(os.path.realpath(path)) if path.is_symlink() else path
        kind, recorded, config = "checkpoint", about(path).get("task", task), {}
    else:
        kind, (recorded, config) = "run", _recorded(run_dir, FLAG)
    if recorded != task:
        raise UserError(
            f"{FLAG}{run_dir or path} is a {kind} of the task {recorded}, not of {task}: name "
            f"{recorded} as the task."
        )
    return Wanted(path, run_dir, config)


def choose_checkpoint(wanted: Wanted, take_lock: bool = False) -> Resume:
    """Return the run with its newest undamaged checkpoint, or with the one that is wanted.

    `take_lock`: whether to lock the run before. UserError if there are only damaged checkpoints, or
    if the run is being trained.
    """
    lock = lock_run(wanted.run_dir) if take_lock and wanted.run_dir else None
    checkpoint, notes = choose(wanted.path, FLAG)
    if checkpoint is None and (init := wanted.path / "checkpoints" / INIT).exists():
        checkpoint = init  # It begins again with the networks that it began with.
    return Resume(wanted.run_dir, checkpoint, wanted.config, notes, lock)


def find_resume(wanted: str, task: str, experiment: Path, take_lock: bool = False) -> Resume:
    """Return what `--resume` means to go on in place: `find_wanted`, then `choose_checkpoint`."""
    return choose_checkpoint(find_wanted(wanted, task, experiment), take_lock)


def find_trained(wanted: str, log_root: Path, dry_run: bool = False) -> tuple[str, Trained]:
    """Return the task and the policy of a run, which a word or one of its checkpoints names, or
    those of a pretrained policy's file.

    `dry_run` is as for `find_run`. UserError if the run or file does not exist, is damaged, or has
    no checkpoint.
    """
    path = find_run(wanted, wanted, log_root, dry_run=dry_run)
    run_dir = _run_of(path)
    if run_dir is None:
        known = about(path)
        if PLAYED in known and isinstance(known.get("task"), str):
            choose(path)  # UserError if it is damaged.
            return known["task"], Trained(Path(), path, config_in(path))
        raise UserError(
            f"{wanted} is neither a run directory, nor a checkpoint in one "
            "(<run directory>/checkpoints/model_<n>.pt), nor a pretrained policy."
        )
    task, config = _recorded(run_dir)
    checkpoint, notes = choose(path)
    if checkpoint is None:
        raise UserError(f"{path} has no checkpoint yet.")
    return task, Trained(run_dir, checkpoint, config, notes)


def find_task_of(
    wanted: str,
    log_root: Path,
    dry_run: bool = False,
    may_be_group: bool = False,
    flag: str = FLAG,
) -> tuple[str, Path]:
    """Return the task of a run or checkpoint, and its path, for a user who types no task.

    `dry_run` and `may_be_group` are as for `find_run`, `flag` is what the user typed before the
    run. UserError if the run or file does not exist or names no task.
    """
    path = find_run(wanted, flag + wanted, log_root, dry_run=dry_run, may_be_group=may_be_group)
    run_dir = run_of_file(path, flag + wanted)
    task = about(path).get("task") if run_dir is None else _task_of(run_dir, flag)
    if not isinstance(task, str):
        raise UserError(f"{flag}{path} does not name its task: type the task first.")
    return task, path


def run_at(wanted: str) -> Path | None:
    """Return the run directory that `--resume` names by its path; None: it names it otherwise."""
    return None if wanted == LATEST else _run_of(Path(wanted))


def run_of_file(path: Path, name: str) -> Path | None:
    """Return the run directory that a path is, or that of a checkpoint; None: it is in no run.

    UserError, which calls the path `name`, if there is no run and no file.
    """
    run_dir = _run_of(path)
    if run_dir is None and not path.is_file():
        raise UserError(
            f"{name} is no run directory: it has no {RECORD_FILE}. It must be a run "
            f"directory, a checkpoint (<run directory>/checkpoints/model_<n>.pt), `{LATEST}`, or "
            "the beginning of a run's name."
        )
    return run_dir


def iteration_in(checkpoint: Path) -> int | None:
    """Return the iterations done in a checkpoint, which its name or the file tells; else None."""
    number = iteration_of(checkpoint)
    number = about(checkpoint).get("iteration") if number is None else number
    return number if type(number) is int and 0 <= number < 10**12 else None


def choose(path: Path, flag: str = "") -> tuple[Path | None, tuple[str, ...]]:
    """Return a checkpoint, or the newest undamaged one of a run directory, and notes about it."""
    if not path.is_dir():
        if damage := why_damaged(path):
            raise UserError(
                f"{flag}{path} is damaged or no checkpoint: {damage}. Name the run directory for "
                "its newest good checkpoint."
            )
        return path, ()
    found = checkpoints_in(path / "checkpoints")
    notes: list[str] = []
    for checkpoint in reversed(found):
        damage = why_damaged(checkpoint)
        if damage is None:
            return checkpoint, tuple(notes)
        notes.append(f"{checkpoint.name} is damaged and was skipped: {damage}")
    if found:
        raise UserError(
            f"{flag}{path}: all of its {len(found)} checkpoints are damaged: {'; '.join(notes)}."
        )
    return None, (f"{path} has no checkpoint yet: it begins anew",)


def _run_of(path: Path) -> Path | None:
    """Return a run directory, a group's, or that of a checkpoint: relative if its path is."""
    if os.path.lexists(path / RECORD_FILE) or is_group(path):
        return path
    folder = path.parent if len(path.parts) > 2 else path.absolute().parent
    is_checkpoint = folder.name == "checkpoints" and not path.is_dir()
    has_record = os.path.lexists(folder.parent / RECORD_FILE)
    return folder.parent if is_checkpoint and has_record else None


def _recorded(run_dir: Path, flag: str = "") -> tuple[str, dict[str, Any]]:
    """Return the task of a run and its configuration."""
    task = _task_of(run_dir, flag)
    name = f"{flag}{run_dir}: its {CONFIG_FILE}"
    return task, read_config(str(run_dir / CONFIG_FILE), name)


def _task_of(run_dir: Path, flag: str) -> str:
    """Return the task of a run or a group."""
    try:
        return record_of(run_dir, GROUP_FILE if is_group(run_dir) else RECORD_FILE)["task"]
    except UserError as error:
        raise UserError(f"{flag}{run_dir}: {error}") from None
