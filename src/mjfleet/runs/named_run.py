"""Finds the run or checkpoint that the user names, and its newest good one. Imports no torch."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from mjfleet.config import TeacherConfig, TrainConfig, from_dict, to_dict
from mjfleet.config.dict_conversion import value_at
from mjfleet.config.train_config import ALGORITHM
from mjfleet.errors import UserError
from mjfleet.runs.attempts import (
    REPLACED,
    config_of,
    replaced_checkpoints,
    run_dir_of,
    undone_checkpoint,
)
from mjfleet.runs.checkpoints import INIT, about, checkpoints_in, iterations_done, why_damaged
from mjfleet.runs.config_yaml import TEACHER, read_config
from mjfleet.runs.find_run import LATEST, find_run, name_of
from mjfleet.runs.pretrained import config_in
from mjfleet.runs.run_json import RECORD_FILE, record_of


@dataclass(frozen=True, kw_only=True)
class Parent:
    """The checkpoint of another run from which a run has begun; its entry in run.json."""

    typed: str = ""  # What the user typed for it.
    run: str | None = None  # Experiment and name of the other run; None: the file is in none.
    checkpoint: str = ""  # Its path.
    iteration: int | None = None  # Iterations done in it; None: unknown.
    networks_only: bool = False  # Whether nothing else was taken of the checkpoint.
    changed: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`value`, and the `parent`'s, of what differs from the other run, by dotted name."""
    id: str | None = None  # The other run's id.


@dataclass(frozen=True, kw_only=True)
class NamedRun:
    """A run, a group or a checkpoint with which training or another command begins."""

    path: Path  # What the user named: a run directory, a group's folder or a checkpoint.
    task: str  # Empty if a checkpoint outside of any run does not name it.
    run_dir: Path | None  # Its run directory, or the group's; None: the file is in none.
    record: dict[str, Any] = field(default_factory=dict)  # Its run.json or group.json.
    checkpoint: Path | None = None  # None: it is not chosen yet, or there is none.
    notes: tuple[str, ...] = ()  # What the user should know.

    @cached_property
    def config(self) -> dict[str, Any]:
        """The configuration of its checkpoint, or of the run; UserError if it cannot be read."""
        if self.run_dir is None:
            return config_in(self.path)
        return recorded_config(self.run_dir, self.checkpoint)

    @property
    def initial(self) -> Path:
        """The copy of the checkpoint with whose networks a run began, if it is there."""
        return self.path / "checkpoints" / INIT

    @property
    def is_untrained(self) -> bool:
        """Whether it has no checkpoint but that with whose networks it began."""
        return self.checkpoint is None or self.checkpoint.name == INIT

    @property
    def iteration(self) -> int | None:
        """Iterations done, if the checkpoint tells them; 0 where training begins anew."""
        return 0 if self.is_untrained else iterations_done(self.policy)

    def with_checkpoint(self, is_restart: bool = False) -> Self:
        """Return the same with the checkpoint that was named, or the newest undamaged one.

        A restart of an attempt that did no iteration begins where that did. A run without one
        begins again with the networks with which it has begun. UserError if there are only damaged
        checkpoints.
        """
        undone = undone_checkpoint(self.path) if is_restart and self.path.is_dir() else None
        if undone and not why_damaged(undone):
            return replace(self, checkpoint=undone)
        checkpoint, notes = choose(self.path)
        if checkpoint is None and self.initial.exists():
            checkpoint = self.initial
        return replace(self, checkpoint=checkpoint, notes=(*self.notes, *notes))

    def trained(self) -> Self:
        """Return the same with a checkpoint to use, `policy`; UserError if it has none."""
        chosen = self.with_checkpoint()
        if chosen.is_untrained:
            raise UserError(f"{self.path} has no checkpoint yet.")
        return chosen

    @property
    def policy(self) -> Path:
        """The checkpoint of what `trained` has returned."""
        assert self.checkpoint is not None
        return self.checkpoint

    def as_parent(self, word: str, networks_only: bool) -> Parent:
        """Return the entry of run.json for a run that begins from the checkpoint."""
        return Parent(
            typed=word,
            run=name_of(self.run_dir.resolve()) if self.run_dir else None,
            checkpoint=os.path.abspath(self.policy),  # `checkpoints` may be a link.
            iteration=iterations_done(self.policy),
            networks_only=networks_only,
            id=self.record.get("id"),
        )


def recorded_config(run_dir: Path, checkpoint: Path | None = None) -> dict[str, Any]:
    """Return the configuration of a checkpoint, or of a run or group; UserError as read_config."""
    file = str(config_of(run_dir, checkpoint))
    return read_config(file, file)


def read_run(path: Path, name: str, may_be_replaced: bool = False) -> NamedRun:
    """Return the run, group or checkpoint of a path; UserError, which calls it `name`, if none.

    A checkpoint that a later attempt has replaced is in no run, unless it `may_be_replaced`.
    """
    is_alone = path.parent.name.startswith(REPLACED) and not may_be_replaced
    run_dir = None if is_alone else run_dir_of(path)
    if path.name == INIT:
        raise UserError(f"{name} is what the run began with: name the run itself.")
    if run_dir is not None:
        record = record_of(run_dir)
        return NamedRun(path=path, task=record["task"], run_dir=run_dir, record=record)
    if not path.is_file():
        raise UserError(
            f"{name} is no run directory: it has no {RECORD_FILE}. It must be a run "
            f"directory, a checkpoint (<run directory>/checkpoints/model_<n>.pt), `{LATEST}`, or "
            "the beginning of a run's name."
        )
    path = path.resolve()  # The user may name a link.
    task = about(path).get("task")
    task = task if isinstance(task, str) else ""
    return NamedRun(path=path, task=task, run_dir=None)


def find_trained(wanted: str, log_root: Path, task: str | None = None) -> NamedRun:
    """Return the run, or the checkpoint outside of any run, that a user means, with its policy.

    `task` is what the user has typed, if anything. UserError if the run or file does not exist, is
    damaged, has no checkpoint, or is of another task.
    """
    path = find_run(wanted, wanted, log_root, task=task)
    chosen = read_run(path, wanted, may_be_replaced=True).trained()
    if not (name := task or chosen.task):
        raise UserError(
            f"{chosen.path} does not name its task, and is in no run directory: begin a run from "
            "it by `train <task> --resume`, or play it by `play <task> --resume`."
        )
    check_task(chosen, name, "")
    return replace(chosen, task=name)


def check_task(run: NamedRun, task: str, flag: str) -> None:
    """Raise UserError if a run or a checkpoint is not of the task that was typed."""
    if run.task not in ("", task):
        kind = "run" if run.run_dir else "checkpoint"
        raise UserError(
            f"{flag}{run.run_dir or run.path} is a {kind} of the task {run.task}, not of {task}: "
            f"name {run.task} as the task."
        )


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


def networks_of(config: TrainConfig, path: str | None = None) -> Parent:
    """Return whose networks a new run takes by `--init-from`, which may be of another task.

    `path` is the checkpoint that the flag means, if that is known. UserError if the run or the file
    does not exist, is damaged, or has no checkpoint.
    """
    word, flag = config.init_from or "", f"--init-from {config.init_from}"
    found = find_run(path or word, flag, Path(config.log_root), config.agent.experiment_name)
    return read_run(found, flag).trained().as_parent(word, networks_only=True)


def begun_with(
    record: Mapping[str, Any], config: TrainConfig, parent: Parent | None
) -> dict[str, Any]:
    """Return what run.json, or group.json, says of other runs that the run has begun with."""
    begun = {n: record[n] for n in ("parent", "teacher") if n in record}
    if parent:
        begun["parent"] = asdict(parent)
    if config.teacher:
        checkpoint = value_at(to_dict(config), TEACHER)
        begun["teacher"] = {"typed": config.teacher, "checkpoint": checkpoint}
    return begun


def with_teacher(config: TrainConfig, path: str | None = None) -> TrainConfig:
    """Return the configuration with checkpoint and network of the run that `--teacher` names.

    `path` is the checkpoint that the flag means, if that is known. UserError if the run cannot be
    used, or there is no teacher where one is needed, or no use for one.
    """
    agent = config.agent
    if not agent.distils:
        if config.teacher is not None:
            raise UserError(
                "--teacher is for --agent.algorithm.name distillation, and it is "
                f"{agent.algorithm.name}."
            )
        return replace(config, agent=replace(agent, teacher=None))
    if config.teacher is None:
        if agent.teacher is None or agent.teacher.checkpoint is None:
            raise UserError("--agent.algorithm.name distillation needs --teacher RUN.")
        return config
    try:
        trained = find_trained(path or config.teacher, Path(config.log_root))
        if value_at(trained.config, ALGORITHM) == "sac":
            raise UserError("it is a run of sac, whose policy distillation cannot imitate.")
        network = value_at(trained.config, "agent.actor")
        data = dict(network) if isinstance(network, dict) else {}
        if groups := value_at(trained.config, "agent.obs_groups.actor"):
            data["obs_groups"] = groups
        data["checkpoint"] = os.path.abspath(trained.policy)
        teacher = from_dict(TeacherConfig(), data)
    except UserError as error:
        raise UserError(f"--teacher {config.teacher}: {error}") from None
    return replace(config, agent=replace(agent, teacher=teacher))
