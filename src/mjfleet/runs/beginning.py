"""Decides from where a run starts: from its own newest checkpoint, from another run's, or anew.

A run continues in place only with the values that have decided what it has learned. With others,
--fork begins a run of its own from its checkpoint. A new run may also begin with the networks of
another, or imitate its policy. Runs in the process that the user started.
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
from mjfleet.runs.checkpoint_names import checkpoints_in
from mjfleet.runs.config_yaml import differences
from mjfleet.runs.resume_choice import (
    Parent,
    Resume,
    choose,
    find_trained,
    iteration_in,
    run_of_file,
)
from mjfleet.runs.run_lock import lock_run
from mjfleet.runs.run_lookup import find_run, is_of_this_user, name_of
from mjfleet.runs.task_snapshot import changes_since, read_code

INIT_STD = "agent.actor.distribution.init_std"
Values = Mapping[str, tuple[Any, Any]]


def has_learned(run_dir: Path) -> bool:
    """Return whether a run has a checkpoint."""
    return bool(checkpoints_in(run_dir / "checkpoints"))


def refuse_other_user(run_dir: Path, flag: str) -> None:
    """Raise UserError if a run that is to continue in place belongs to another user."""
    if not is_of_this_user(run_dir):
        raise UserError(
            f"{flag}: the run is another user's, and is not continued in place. Begin one of your "
            f"own from it: --resume {run_dir} --fork"
        )


def continue_run(
    named: Resume, config: TrainConfig, recorded: TrainConfig, task_folder: Path
) -> tuple[Resume, TrainConfig]:
    """Return the run with the checkpoint from which it continues in place, and its configuration.

    The run is locked, unless this is a dry run.

    Args:
        named: the run.
        config: what is to be trained now.
        recorded: the configuration of the run.
        task_folder: the task's code now.

    Raises:
        UserError: a value differs that decides what is learned, the run is another user's or is
            being trained, or its checkpoints are damaged.
    """
    run_dir = named.run_dir
    assert run_dir is not None
    flag = f"--run-dir {config.run_dir}" if config.run_dir else f"--resume {run_dir}"
    fork = f"--resume {named.path} --fork"
    different, others = _differences(config, recorded), {}
    if has_learned(run_dir):
        changed = {n: both for n, both in different.items() if not continues_in_place(n)}
        if changed:
            raise UserError(
                f"{flag} continues a run, which has learned with other values: {_listed(changed)}. "
                f"Leave these out, or begin a run of its own with them: {fork}"
            )
        kinds = field_kinds()
        others = {n: both for n, both in different.items() if kinds[n] is not Kind.PLACEMENT}
    refuse_other_user(run_dir, flag)
    lock = named.lock or (None if config.dry_run else lock_run(run_dir))
    resume = replace(named, lock=lock).with_checkpoint()
    changes = code_changes(resume, task_folder)
    why = "its metrics continue with the new code" if changes else "what is learned is the same"
    note = f"continues in place: {why}{f' ({_listed(others)})' if others else ''}"
    return replace(resume, notes=(note, *changes, *resume.notes)), config


def fork(
    named: Resume, config: TrainConfig, recorded: TrainConfig, task_folder: Path
) -> tuple[Resume, TrainConfig]:
    """Return a new run that begins from the checkpoint of another, which stays as it is.

    The arguments are as for `continue_run`; `named` may also be a checkpoint outside of any run.

    Raises:
        UserError: there is no checkpoint, or a value differs with which a policy can only begin.
    """
    resume = named.with_checkpoint()
    run_dir, checkpoint = named.run_dir, resume.checkpoint
    if checkpoint is None:
        raise UserError(f"--resume {named.path} --fork: it has no checkpoint yet.")
    different = _differences(config, recorded) if run_dir else {}
    if INIT_STD in different:
        raise UserError(
            f"--{INIT_STD.replace('_', '-')} is for the beginning of a policy; {checkpoint} has "
            f"begun with {different[INIT_STD][1]}: leave it out, or train without --resume."
        )
    parent = Parent(
        named=config.resume or "",
        run=name_of(run_dir.resolve()) if run_dir else None,
        checkpoint=str(checkpoint.resolve()),
        iteration=resume.iteration,
        networks_only=resume.networks_only,
        changed={n: {"value": ours, "parent": theirs} for n, (ours, theirs) in different.items()},
        id=named.record.get("id"),
    )
    changed = f", with {_listed(different)}" if different else ""
    note = f"a run of its own begins from {checkpoint}{changed}"
    notes = (note, *code_changes(resume, task_folder), *resume.notes)
    return replace(resume, run_dir=None, parent=parent, notes=notes), config


def begin_from(config: TrainConfig, meant: str | None = None) -> tuple[Resume, TrainConfig]:
    """Return where a new run takes its networks, and its configuration, which names that file.

    The run that `--init-from` names may be of another task. `meant` is what the flag means if it
    has been found before. UserError if the run or the file does not exist, is damaged, or has no
    checkpoint.
    """
    flag = f"--init-from {config.init_from}"
    place = Path(config.log_root), config.agent.experiment_name
    path = find_run(meant or config.init_from or "", flag, *place, dry_run=config.dry_run)
    run_dir = run_of_file(path, flag)
    checkpoint, notes = choose(path, "--init-from ")
    if checkpoint is None:
        raise UserError(f"{flag}: {path} has no checkpoint yet.")
    checkpoint = checkpoint.resolve()
    parent = Parent(
        named=config.init_from or "",
        run=name_of(run_dir.resolve()) if run_dir else None,
        checkpoint=str(checkpoint),
        iteration=iteration_in(checkpoint),
        networks_only=True,
    )
    resume = Resume(
        path=path, task="", run_dir=None, checkpoint=checkpoint, notes=notes, parent=parent
    )
    return resume, replace(config, init_from=str(checkpoint))


def first_meaning(here: Resume, flag: str, word: str) -> str:
    """Return what the word of a flag meant at the first start of the run in --run-dir.

    `latest` may mean another run by now. `flag` is resume, init_from or teacher.
    """
    known = here.record.get("teacher" if flag == "teacher" else "parent") or {}
    is_same = known.get("named") == word
    if flag != "teacher" and bool(known.get("networks_only")) != (flag == "init_from"):
        is_same = False
    return known["checkpoint"] if is_same and isinstance(known.get("checkpoint"), str) else word


def refuse_other_parent(here: Resume, flag: str, word: str, log_root: Path) -> None:
    """Raise UserError if the run in --run-dir has not begun from what a flag names."""
    typed, parent = f"--{flag.replace('_', '-')} {word}", here.record.get("parent") or {}
    path = find_run(word, typed, log_root)
    run_dir = run_of_file(path, typed)
    means = name_of(run_dir.resolve()) if run_dir else str(path.resolve())
    is_init, known = bool(parent.get("networks_only")), map(parent.get, ("run", "checkpoint"))
    if is_init != (flag == "init_from") or means not in known:
        began = parent.get("checkpoint", "no other run's checkpoint")
        raise UserError(
            f"--run-dir {here.run_dir}: the run in it has begun from {began}, not from {typed}. "
            f"Leave {typed} out to continue it, or name another --run-dir."
        )


def with_teacher(config: TrainConfig, meant: str | None = None) -> TrainConfig:
    """Return the configuration with checkpoint and network of the run that `--teacher` names.

    Without the flag it keeps the teacher that it has; without a distillation it has none. `meant`
    is what the flag means if it has been found before.

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
        _, trained = find_trained(meant or config.teacher, log_root, dry_run=config.dry_run)
        network = value_at(trained.config, "agent.actor")
        data = dict(network) if isinstance(network, dict) else {}
        if groups := value_at(trained.config, "agent.obs_groups.actor"):
            data["obs_groups"] = groups
        data["checkpoint"] = str(trained.checkpoint.resolve())
        teacher = from_dict(TeacherConfig(), data)
    except UserError as error:
        raise UserError(f"--teacher {config.teacher}: {error}") from None
    return replace(config, agent=replace(agent, teacher=teacher))


def code_changes(resume: Resume, task_folder: Path) -> tuple[str, ...]:
    """Return how the task's code differs from what a checkpoint was trained with, if it does."""
    if resume.checkpoint is None or resume.networks_only:
        return ()
    changes = changes_since(resume.checkpoint, read_code(task_folder))
    return (changes,) if changes else ()


def _differences(config: TrainConfig, recorded: TrainConfig) -> dict[str, tuple[Any, Any]]:
    different = differences(config, recorded)
    if config.total_envs is not None and "total_envs" not in different:
        different.pop("env.num_envs", None)  # It follows from the number of workers.
    return different


def _listed(values: Values) -> str:
    """Return differing values in words: `--agent.seed is 9, was 1`."""
    shown = {n: [value if value != "" else "empty" for value in both] for n, both in values.items()}
    return "; ".join(f"--{n.replace('_', '-')} is {a}, was {b}" for n, (a, b) in shown.items())
