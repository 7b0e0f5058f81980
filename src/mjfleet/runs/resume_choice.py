"""Finds the run or checkpoint that the user names, and its newest good one. Imports no torch."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from mjfleet.errors import UserError
from mjfleet.runs.attempts import REPLACED, config_of, replaced_checkpoints
from mjfleet.runs.checkpoints import INIT, about, checkpoints_in, iterations_done, why_damaged
from mjfleet.runs.config_yaml import read_config
from mjfleet.runs.find_run import LATEST, find_run, name_of
from mjfleet.runs.pretrained import config_in
from mjfleet.runs.run_json import RECORD_FILE, is_group, record_of
from mjfleet.runs.run_lock import RunLock

FLAG = "--resume "  # How messages name what the user typed.


@dataclass(frozen=True, kw_only=True)
class Parent:
    """The checkpoint of another run from which a run has begun; its entry in run.json."""

    named: str  # What the user typed for it.
    run: str | None  # Experiment and name of the other run; None: the file was in no run directory.
    checkpoint: str  # Its path.
    iteration: int | None  # Iterations done in it; None: unknown.
    networks_only: bool = False  # Whether nothing else was taken of the checkpoint.
    changed: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`value`, and the `parent`'s, of what differs from the other run, by dotted name."""
    id: str | None = None  # The other run's id.


@dataclass(frozen=True, kw_only=True)
class Resume:
    """A run, or a checkpoint, with which training or another command begins. It is read once."""

    path: Path  # What the user named: a run directory, a group's folder or a checkpoint.
    task: str  # Empty if a checkpoint outside of any run does not name it.
    run_dir: Path | None  # The directory that is trained in. None: a new run begins.
    record: dict[str, Any] = field(default_factory=dict)  # Its run.json or group.json.
    config: dict[str, Any] = field(default_factory=dict)  # Its config.yaml, or a pretrained one's.
    checkpoint: Path | None = None  # None: it is not chosen yet, or there is none.
    notes: tuple[str, ...] = ()  # What the user should know.
    lock: RunLock | None = None  # The lock of `run_dir`.
    is_restart: bool = False  # Whether the run was started again after a fault, by itself.
    parent: Parent | None = None  # The run whose checkpoint this one begins from.

    @property
    def iteration(self) -> int | None:
        """Iterations done, if the checkpoint tells them; 0 where training begins anew."""
        return iterations_done(self.checkpoint) if self.checkpoint and not self.networks_only else 0

    @property
    def networks_only(self) -> bool:
        """Whether nothing but networks is taken of the checkpoint."""
        is_init = self.checkpoint is not None and self.checkpoint.name == INIT
        return is_init or (self.parent is not None and self.parent.networks_only)

    def with_checkpoint(self) -> Self:
        """Return the same with the checkpoint that was named, or the newest undamaged one.

        A run without one begins again with the networks with which it has begun. UserError if
        there are only damaged checkpoints.
        """
        checkpoint, notes = choose(self.path)
        if checkpoint is None and (init := self.path / "checkpoints" / INIT).exists():
            checkpoint = init
        return replace(self, checkpoint=checkpoint, notes=(*self.notes, *notes))

    def trained(self) -> Self:
        """Return the same with a checkpoint to use, `policy`; UserError if it has none."""
        chosen = self.with_checkpoint()
        if chosen.checkpoint is None or chosen.networks_only:
            raise UserError(f"{self.path} has no checkpoint yet.")
        return chosen.with_own_config()

    def with_own_config(self) -> Self:
        """Return the same with the configuration with which its checkpoint was trained."""
        if self.run_dir is None or self.checkpoint is None:
            return self
        file = str(config_of(self.run_dir, self.checkpoint))
        return replace(self, config=read_config(file, file))

    @property
    def policy(self) -> Path:
        """The checkpoint of what `trained` has returned."""
        assert self.checkpoint is not None
        return self.checkpoint

    def as_parent(self, named: str | None, **entries: Any) -> Parent:
        """Return the entry of run.json for a run that begins from the checkpoint."""
        return Parent(
            named=named or "",
            run=name_of(self.run_dir.resolve()) if self.run_dir else None,
            checkpoint=str(self.policy.resolve()),
            iteration=iterations_done(self.policy),
            **entries,
        )


def read_run(path: Path, name: str, may_be_replaced: bool = False) -> Resume:
    """Return the run, group or checkpoint of a path; UserError, which calls it `name`, if none.

    A checkpoint that a later attempt has replaced is in no run, unless it `may_be_replaced`.
    """
    is_replaced = may_be_replaced and path.parent.name.startswith(REPLACED)
    run_dir = run_at(path.absolute().parent if is_replaced else path)
    if path.name == INIT:
        raise UserError(f"{name} is what the run began with: name the run itself.")
    if run_dir is not None:
        record = record_of(run_dir)
        file = str(config_of(run_dir))
        config = read_config(file, file)
        return Resume(path=path, task=record["task"], run_dir=run_dir, record=record, config=config)
    if not path.is_file():
        raise UserError(
            f"{name} is no run directory: it has no {RECORD_FILE}. It must be a run "
            f"directory, a checkpoint (<run directory>/checkpoints/model_<n>.pt), `{LATEST}`, or "
            "the beginning of a run's name."
        )
    path = path.resolve()  # The user may name a link.
    task = about(path).get("task")
    task = task if isinstance(task, str) else ""
    return Resume(path=path, task=task, run_dir=None, config=config_in(path))


def find_trained(wanted: str, log_root: Path, task: str | None = None) -> Resume:
    """Return the run, or the checkpoint outside of any run, that a user means, with its policy.

    `task` is what the user has typed, if anything. UserError if the run or file does not exist, is
    damaged, has no checkpoint, or is of another task.
    """
    chosen = read_run(find_run(wanted, wanted, log_root, task=task), wanted, may_be_replaced=True)
    if not (name := task or chosen.task):
        raise UserError(
            f"{chosen.path} does not name its task, and is in no run directory: begin a run from "
            "it by `train <task> --resume`, or play it by `play <task> --resume`."
        )
    check_task(chosen, name, flag="")
    return replace(chosen.trained(), task=name)


def check_task(resume: Resume, task: str, flag: str = FLAG) -> None:
    """Raise UserError if a run or a checkpoint is not of the task that was typed."""
    if resume.task not in ("", task):
        kind = "run" if resume.run_dir else "checkpoint"
        raise UserError(
            f"{flag}{resume.run_dir or resume.path} is a {kind} of the task {resume.task}, not of "
            f"{task}: name {resume.task} as the task."
        )


def run_at(path: Path) -> Path | None:
    """Return the run directory, or a group's, that a path is, or that of a checkpoint; or None.

    It is relative if the path is.
    """
    if os.path.lexists(path / RECORD_FILE) or is_group(path):
        return path
    folder = path.parent if len(path.parts) > 2 else path.absolute().parent
    is_inside = folder.name == "checkpoints"
    is_checkpoint = is_inside and (path.name.startswith(REPLACED) or not path.is_dir())
    has_record = os.path.lexists(folder.parent / RECORD_FILE)
    return folder.parent if is_checkpoint and has_record else None


def choose(path: Path) -> tuple[Path | None, tuple[str, ...]]:
    """Return a checkpoint, or the newest undamaged one of a run directory, and notes about it.

    None if a run directory has no checkpoint. UserError if all are damaged.
    """
    if not path.is_dir():
        if damage := why_damaged(path):
            raise UserError(
                f"{path} is damaged or no checkpoint: {damage}. Name the run directory for "
                "its newest good checkpoint."
            )
        return path, ()
    replaced = replaced_checkpoints(path)
    found = [one for one in checkpoints_in(path / "checkpoints") if one not in replaced]
    notes: list[str] = []
    for checkpoint in reversed(found):
        damage = why_damaged(checkpoint)
        if damage is None:
            return checkpoint, tuple(notes)
        notes.append(f"{checkpoint.name} is damaged and was skipped: {damage}")
    if found:
        raise UserError(
            f"{path}: all of its {len(found)} checkpoints are damaged: {'; '.join(notes)}."
        )
    return None, (f"{path} has no checkpoint yet: it begins anew",)
