"""Decides from where a run starts: from its own newest checkpoint, from another run's, or anew."""

import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from mjfleet.config import TeacherConfig, TrainConfig, from_dict
from mjfleet.config.dict_conversion import value_at
from mjfleet.config.field_kinds import Kind
from mjfleet.config.train_config import continues_in_place, field_kinds
from mjfleet.errors import UserError
from mjfleet.runs.checkpoints import checkpoints_in
from mjfleet.runs.config_yaml import differences
from mjfleet.runs.find_run import find_run, is_of_this_user
from mjfleet.runs.metrics_csv import METRICS_FILE, completed_iterations
from mjfleet.runs.resume_choice import Resume, find_trained, read_run
from mjfleet.runs.run_json import is_group
from mjfleet.runs.run_lock import lock_again
from mjfleet.runs.task_snapshot import changes_since

INIT_STD = "agent.actor.distribution.init_std"


def has_learned(run_dir: Path) -> bool:
    """Return whether a run has a checkpoint."""
    return bool(checkpoints_in(run_dir / "checkpoints"))


def refuse_other_user(folder: Path, flag: str) -> None:
    """Raise UserError if a run or a group that is to continue in place is another user's."""
    if not is_of_this_user(folder):
        again = f"With --resume {shlex.quote(str(folder))} --fork, begin one"
        how = "Train a group" if is_group(folder) else again
        raise UserError(
            f"{flag}: it is another user's, and is not continued in place. {how} of your own."
        )


def continue_run(
    origin: Resume, config: TrainConfig, recorded: TrainConfig, task_folder: Path
) -> Resume:
    """Return the run with the checkpoint from which it continues in place.

    It is locked, unless this is a dry run or no process has locked it yet. `config` is what is to
    be trained now, `recorded` the run's own. UserError if a value differs that decides what is
    learned, the run is another user's or is being trained, or its checkpoints are damaged.
    """
    run_dir = origin.run_dir
    assert run_dir is not None
    flag = f"--run-dir {config.run_dir}" if config.run_dir else f"--resume {run_dir}"
    different = _differences(config, recorded) if has_learned(run_dir) else {}
    if changed := {n: both for n, both in different.items() if not continues_in_place(n)}:
        path = shlex.quote(str(origin.path))
        raise UserError(
            f"{flag} continues a run, which has learned with other values: {_listed(changed)}. "
            f"Leave these out, or begin a run of its own with them: --resume {path} --fork"
        )
    refuse_other_user(run_dir, flag)
    lock = origin.lock or (None if config.dry_run else lock_again(run_dir))
    resume = replace(origin, lock=lock).with_checkpoint()
    changes = _code_changes(resume, task_folder)
    why = "its metrics continue with the new code" if changes else "what is learned is the same"
    kinds = field_kinds()
    shown = {n: both for n, both in different.items() if kinds[n] is not Kind.PLACEMENT}
    note = f"continues in place: {why}{f' ({_listed(shown)})' if shown else ''}"
    lost = _missing_rows(run_dir, resume)
    return replace(resume, notes=(note, *changes, *lost, *resume.notes))


def fork(origin: Resume, config: TrainConfig, recorded: TrainConfig, task_folder: Path) -> Resume:
    """Return a new run that begins from the checkpoint of another, which stays as it is.

    `origin` may also be a checkpoint outside of any run. UserError if there is no checkpoint, or a
    value differs with which a policy can only begin.
    """
    resume = origin.with_checkpoint()
    if resume.checkpoint is None:
        raise UserError(f"--resume {origin.path} --fork: it has no checkpoint yet.")
    different = _differences(config, recorded) if origin.run_dir else {}
    if INIT_STD in different:
        raise UserError(
            f"--{INIT_STD.replace('_', '-')} is for the beginning of a policy; {resume.checkpoint} "
            f"has begun with {different[INIT_STD][1]}: leave it out, or train without --resume."
        )
    parent = resume.as_parent(
        config.resume,
        networks_only=resume.networks_only,
        changed={n: {"value": ours, "parent": theirs} for n, (ours, theirs) in different.items()},
        id=origin.record.get("id"),
    )
    changed = f", with {_listed(different)}" if different else ""
    note = f"a run of its own begins from {resume.checkpoint}{changed}"
    notes = (note, *_code_changes(resume, task_folder), *resume.notes)
    return replace(resume, run_dir=None, parent=parent, notes=notes)


def begin_from(config: TrainConfig, path: str | None = None) -> tuple[Resume, TrainConfig]:
    """Return where a new run takes its networks, and its configuration, which names that file.

    The run that `--init-from` names may be of another task. `path` is what the flag means if it
    has been found before. UserError if the run or the file does not exist, is damaged, or has no
    checkpoint.
    """
    flag = f"--init-from {config.init_from}"
    place = Path(config.log_root), config.agent.experiment_name
    origin = read_run(find_run(path or config.init_from or "", flag, *place), flag).trained()
    parent = origin.as_parent(config.init_from, networks_only=True)
    checkpoint = origin.policy.resolve()
    resume = replace(origin, task="", run_dir=None, checkpoint=checkpoint, parent=parent)
    return resume, replace(config, init_from=str(checkpoint))


def first_meaning(here: Resume, flag: str, typed: str) -> str:
    """Return what a flag meant at the first start of the run in --run-dir.

    `latest` may mean another run by now. `flag` is resume, init_from or teacher. UserError if the
    run has learned, and has not begun from what the flag names.
    """
    known = here.record.get("teacher" if flag == "teacher" else "parent") or {}
    is_same = known.get("named") == typed and isinstance(known.get("checkpoint"), str)
    if flag != "teacher" and bool(known.get("networks_only")) != (flag == "init_from"):
        is_same = False
    if not is_same and flag != "teacher" and has_learned(here.path):
        name, began = f"--{flag.replace('_', '-')} {typed}", known.get("named", "nothing")
        raise UserError(
            f"--run-dir {here.path}: the run in it has begun from {began}, not by {name}. Leave "
            f"{name} out to continue it, or name another --run-dir."
        )
    return known["checkpoint"] if is_same else typed


def with_teacher(config: TrainConfig, path: str | None = None) -> TrainConfig:
    """Return the configuration with checkpoint and network of the run that `--teacher` names.

    `path` is what the flag means if it has been found before. UserError if the run cannot be
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
        network = value_at(trained.config, "agent.actor")
        data = dict(network) if isinstance(network, dict) else {}
        if groups := value_at(trained.config, "agent.obs_groups.actor"):
            data["obs_groups"] = groups
        data["checkpoint"] = str(trained.policy.resolve())
        teacher = from_dict(TeacherConfig(), data)
    except UserError as error:
        raise UserError(f"--teacher {config.teacher}: {error}") from None
    return replace(config, agent=replace(agent, teacher=teacher))


def _missing_rows(run_dir: Path, resume: Resume) -> tuple[str, ...]:
    """Return a note if metrics.csv has no rows up to the checkpoint; UserError if it is a folder.

    Iterations of the parent, from whose checkpoint the run began, are not in it.
    """
    if (run_dir / METRICS_FILE).is_dir():
        raise UserError(f"{run_dir / METRICS_FILE} is a folder; it must be a file: move it away.")
    before = value_at(resume.record, "parent.iteration", 0)
    with suppress(OSError):  # Refuse what is no file of a run before anything is written.
        rows = max(completed_iterations(run_dir), before if isinstance(before, int) else 0)
        if (missing := (resume.iteration or 0) - rows) > 0:
            return (f"{METRICS_FILE} lacks the rows of the last {missing} iterations",)
    return ()


def _code_changes(resume: Resume, task_folder: Path) -> tuple[str, ...]:
    """Return how the task's code differs from what a checkpoint was trained with, if it does."""
    if resume.checkpoint is None or resume.networks_only:
        return ()
    changes = changes_since(resume.checkpoint, task_folder)
    return (changes,) if changes else ()


def _differences(config: TrainConfig, recorded: TrainConfig) -> dict[str, tuple[Any, Any]]:
    different = differences(config, recorded)
    if config.total_envs is not None and "total_envs" not in different:
        different.pop("env.num_envs", None)  # It follows from the number of workers.
    return different


def _listed(values: Mapping[str, tuple[Any, Any]]) -> str:
    """Return differing values as text: `--agent.seed is 9, was 1`."""
    shown = {n: [value if value != "" else "empty" for value in both] for n, both in values.items()}
    return "; ".join(f"--{n.replace('_', '-')} is {a}, was {b}" for n, (a, b) in shown.items())
