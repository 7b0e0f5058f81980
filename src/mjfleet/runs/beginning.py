"""Decides where a run begins, and what it takes of others.

A run that is resumed goes on in place if nothing differs that decides what is learned. Otherwise a
new run begins from its checkpoint, and the run stays as it is. A new run may also begin with the
networks of another, or imitate its policy. Runs in the process that the user started.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mjfleet.config import TeacherConfig, TrainConfig, from_dict
from mjfleet.config.dict_conversion import value_at
from mjfleet.config.field_kinds import Kind
from mjfleet.config.train_config import continues_in_place, field_kinds
from mjfleet.errors import UserError
from mjfleet.runs.config_yaml import differences
from mjfleet.runs.resume_choice import (
    Parent,
    Resume,
    Wanted,
    choose,
    choose_checkpoint,
    find_trained,
    iteration_in,
    run_of_file,
)
from mjfleet.runs.run_json import read_record
from mjfleet.runs.run_lookup import find_run, name_of
from mjfleet.runs.task_snapshot import changes_since, read_code

INIT_STD = "agent.actor.distribution.init_std"
NAMED = 5  # How many differing values a line names.
Values = Mapping[str, tuple[Any, Any]]


def resume_or_fork(
    wanted: Wanted,
    config: TrainConfig,
    recorded: TrainConfig,
    take_lock: bool,
    task_folder: Path,
) -> tuple[Resume, TrainConfig]:
    """Return where training continues, and the configuration that it uses.

    Args:
        wanted: what `--resume` names.
        config: what is to be trained now.
        recorded: the configuration of the run that `wanted` names.
        take_lock: whether to lock a run that goes on in place.
        task_folder: the task's code now.

    Raises:
        UserError: the run is being trained, its checkpoints are damaged, or a value differs that
            cannot be changed any more.
    """
    if wanted.run_dir is None:
        resume = choose_checkpoint(wanted)
        notes = (f"a new run begins with {wanted.path}", *_code_changes(resume, task_folder))
        return replace(resume, parent=_parent(resume, None, {}), notes=notes), config
    different = differences(config, recorded)
    if config.total_envs is not None and "total_envs" not in different:
        different.pop("env.num_envs", None)  # It follows from the number of workers.
    reasons = {n: both for n, both in different.items() if not continues_in_place(n)}
    if not reasons:
        kinds = field_kinds()
        others = {n: both for n, both in different.items() if kinds[n] is not Kind.PLACEMENT}
        if config.run_dir:
            raise UserError(
                f"--run-dir {config.run_dir} is for a new run, and {wanted.run_dir} goes on in "
                "place: leave it out."
            )
        resume = choose_checkpoint(wanted, take_lock)
        config = replace(config, log_root=recorded.log_root)  # It is where it is.
        changes = _code_changes(resume, task_folder)
        why = "nothing differs that decides what is learned"
        if changes:
            why = "its metrics continue with the new code"
        note = f"goes on in place: {why}{f' ({_listed(others)})' if others else ''}"
        return replace(resume, notes=(note, *changes, *resume.notes)), config
    resume = choose_checkpoint(wanted)
    if resume.checkpoint and INIT_STD in reasons:
        raise UserError(
            f"--{INIT_STD.replace('_', '-')} is for the beginning of a policy, and "
            f"{resume.checkpoint} has begun with {reasons[INIT_STD][1]}: leave it out, or train "
            "without --resume."
        )
    note = f"a run of its own, since {_listed(reasons)}; {wanted.run_dir} stays as it is"
    parent = _parent(resume, wanted.run_dir.resolve(), different)
    notes = (note, *_code_changes(resume, task_folder), *resume.notes)
    return replace(resume, run_dir=None, parent=parent, notes=notes), config


def begin_from(config: TrainConfig) -> tuple[Resume, TrainConfig]:
    """Return where a new run takes its networks, and its configuration, which names that file.

    The run that `--init-from` names may be of another task. UserError if it, or the file, does not
    exist, is damaged, or has no checkpoint.
    """
    flag = f"--init-from {config.init_from}"
    place = Path(config.log_root), config.agent.experiment_name
    path = find_run(config.init_from or "", flag, *place, dry_run=config.dry_run)
    run_dir = run_of_file(path, flag)
    checkpoint, notes = choose(path, "--init-from ")
    if checkpoint is None:
        raise UserError(f"{flag}: {path} has no checkpoint yet.")
    checkpoint = checkpoint.resolve()
    parent = Parent(
        run=run_dir and name_of(run_dir.resolve()),
        checkpoint=str(checkpoint),
        iteration=iteration_in(checkpoint),
        networks_only=True,
    )
    resume = Resume(None, checkpoint, {}, notes, parent=parent)
    return resume, replace(config, init_from=str(checkpoint))


def with_teacher(config: TrainConfig) -> TrainConfig:
    """Return the configuration with checkpoint and network of the run that `--teacher` names.

    Without the flag it keeps the teacher that it has; without a distillation it has none.

    Raises:
        UserError: the run does not exist or has no checkpoint, or there is no teacher where one is
            needed, or no use for one.
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
        log_root = Path(config.log_root)
        _, trained = find_trained(config.teacher, log_root, config.dry_run)
        network = value_at(trained.config, "agent.actor")
        data = dict(network) if isinstance(network, dict) else {}
        if groups := value_at(trained.config, "agent.obs_groups.actor"):
            data["obs_groups"] = groups
        data["checkpoint"] = str(trained.checkpoint.resolve())
        teacher = from_dict(TeacherConfig(), data)
    except UserError as error:
        raise UserError(f"--teacher {config.teacher}: {error}") from None
    return replace(config, agent=replace(agent, teacher=teacher))


def _code_changes(resume: Resume, task_folder: Path) -> tuple[str, ...]:
    """Return how the task's code differs from what a checkpoint was trained with, if it does."""
    if resume.checkpoint is None or resume.networks_only:
        return ()
    changes = changes_since(resume.checkpoint, read_code(task_folder))
    return (changes,) if changes else ()


def _parent(resume: Resume, run_dir: Path | None, different: Values) -> Parent:
    """Return what run.json records of the run, or of the checkpoint, that a new run begins from."""
    return Parent(
        run=name_of(run_dir) if run_dir else None,
        checkpoint=str(resume.checkpoint.resolve()) if resume.checkpoint else None,
        iteration=resume.iteration,
        networks_only=resume.networks_only,
        changed={n: {"value": ours, "parent": theirs} for n, (ours, theirs) in different.items()},
        id=read_record(run_dir).get("id") if run_dir else None,
    )


def _listed(values: Values) -> str:
    """Return differing values in words: `--agent.seed is 9, was 1`."""
    shown = {n: [value if value != "" else "empty" for value in both] for n, both in values.items()}
    words = [
        f"--{n.replace('_', '-')} is {ours}, was {theirs}" for n, (ours, theirs) in shown.items()
    ]
    more = [f"{len(words) - NAMED} more differ"] if len(words) > NAMED else []
    return "; ".join(words[:NAMED] + more)
