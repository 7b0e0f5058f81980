"""Chooses the run and the checkpoint that `--resume` or a run's name means. Imports no torch."""

import os
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mjfleet.errors import UserError
from mjfleet.runs.checkpoint_names import checkpoints_in, iteration_of
from mjfleet.runs.config_yaml import CONFIG_FILE, read_config
from mjfleet.runs.run_directory import lock_run
from mjfleet.runs.run_json import RECORD_FILE
from mjfleet.runs.run_lookup import LATEST, find_run, record_of

FLAG = "--resume "
"""How messages name what the user typed."""


@dataclass(frozen=True)
class Resume:
    """Where a run continues."""

    run_dir: Path | None
    """The run that continues. None: a new run starts from a checkpoint without a run directory."""
    checkpoint: Path | None
    """None: the run has no checkpoint yet and starts from the beginning."""
    config: dict[str, Any]
    """The configuration of that run, empty without a run directory."""
    lock: int | None = None
    """Open descriptor that keeps other processes from continuing the run."""
    notes: tuple[str, ...] = ()
    """What the user should know about the choice."""

    @property
    def iteration(self) -> int | None:
        """Iterations done, if the file's name tells them; 0 without a checkpoint."""
        return iteration_of(self.checkpoint) if self.checkpoint else 0


@dataclass(frozen=True)
class Trained:
    """A policy that a run has learned."""

    run_dir: Path
    checkpoint: Path
    config: dict[str, Any]
    """The configuration of that run."""
    notes: tuple[str, ...] = ()
    """What the user should know about the choice."""


def find_resume(wanted: str, task: str, experiment: Path, take_lock: bool = False) -> Resume:
    """Return what `--resume` means.

    Args:
        wanted: a run directory, a checkpoint, or a word for a run that `find_run` knows.
        task: the task to train.
        experiment: the folder in which `latest` looks for runs, under the log root.
        take_lock: whether to lock the run before looking for its newest checkpoint.

    Raises:
        UserError: the run or file does not exist, is damaged, is being trained, or belongs to
            another task.
    """
    path = find_run(wanted, FLAG + wanted, experiment.parent, experiment.name)
    is_run = (path / RECORD_FILE).is_file()
    if not is_run and not path.is_file():
        raise UserError(
            f"{FLAG}{wanted} is no run directory: it has no {RECORD_FILE}. It must be a run "
            f"directory, a checkpoint (<run directory>/checkpoints/model_<n>.pt), `{LATEST}`, or "
            "the beginning of a run's name."
        )
    if not is_run and (damage := why_damaged(path)):
        raise UserError(
            f"{FLAG}{path} is damaged or no checkpoint: {damage}. To go on from the newest good "
            "one of a run, name the run directory."
        )
    run_dir = path if is_run else _run_of(path)
    if run_dir is None:
        return Resume(None, path, {}, notes=(f"a new run begins with {path}",))
    recorded = _task_of(run_dir, FLAG)
    if recorded != task:
        raise UserError(
            f"{FLAG}{run_dir} is a run of the task {recorded}, not of {task}: "
            f"train {recorded} {FLAG}{run_dir}"
        )
    config = _config_of(run_dir, FLAG)
    lock = lock_run(run_dir) if take_lock else None
    if not is_run:
        return Resume(run_dir, path, config, lock)
    return replace(_newest(run_dir, config, FLAG), lock=lock)


def find_trained(wanted: str, log_root: Path) -> tuple[str, Trained]:
    """Return the task and the policy of a run, which a word or one of its checkpoints names.

    Raises:
        UserError: the run or file does not exist, is damaged, or has no checkpoint.
    """
    path = find_run(wanted, wanted, log_root)
    run_dir = path if (path / RECORD_FILE).is_file() else _run_of(path)
    if run_dir is None:
        raise UserError(
            f"{wanted} is neither a run directory, nor a checkpoint in one "
            "(<run directory>/checkpoints/model_<n>.pt)."
        )
    task, config = _task_of(run_dir), _config_of(run_dir)
    if run_dir != path:
        if damage := why_damaged(path):
            raise UserError(f"{path} is damaged or no checkpoint: {damage}.")
        return task, Trained(run_dir, path, config)
    newest = _newest(path, config)
    if newest.checkpoint is None:
        raise UserError(f"{path} has no checkpoint yet.")
    return task, Trained(run_dir, newest.checkpoint, config, newest.notes)


def read_recorded(wanted: str) -> dict[str, Any]:
    """Return the configuration of the run that `--resume` names by its path, else nothing."""
    path = Path(wanted)
    run_dir = path if (path / RECORD_FILE).is_file() else _run_of(path)
    if wanted == LATEST or run_dir is None:
        return {}
    return _config_of(run_dir, FLAG)


def take_tasks_dir(recorded: dict[str, Any]) -> str | None:
    """Return the folder of task folders that a configuration names, if it exists.

    Otherwise the run was recorded on another machine. The name is removed from the configuration,
    and its task is looked for in the usual places.
    """
    folder = recorded.get("tasks_dir")
    if not isinstance(folder, str):
        return None
    if os.path.isdir(folder):
        return folder
    recorded["tasks_dir"] = None
    return None


def why_damaged(checkpoint: Path) -> str | None:
    """Return what the checksums of a checkpoint's file show to be wrong, or None."""
    try:
        with zipfile.ZipFile(checkpoint) as archive:
            bad = archive.testzip()
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError) as error:
        return str(error) or type(error).__name__
    return f"{bad} does not match its check sum" if bad else None


def _newest(run_dir: Path, config: dict[str, Any], flag: str = "") -> Resume:
    """Return the newest undamaged checkpoint of a run."""
    found = checkpoints_in(run_dir / "checkpoints")
    notes = []
    for checkpoint in reversed(found):
        damage = why_damaged(checkpoint)
        if damage is None:
            return Resume(run_dir, checkpoint, config, notes=tuple(notes))
        notes.append(f"{checkpoint.name} is damaged and was skipped: {damage}")
    if found:
        raise UserError(
            f"{flag}{run_dir}: all of its {len(found)} checkpoints are damaged: {'; '.join(notes)}."
        )
    return Resume(
        run_dir, None, config, notes=(f"{run_dir} has no checkpoint yet: it begins anew",)
    )


def _run_of(checkpoint: Path) -> Path | None:
    """Return the run directory of a checkpoint, relative if the checkpoint's path is."""
    folder = checkpoint.parent if len(checkpoint.parts) > 2 else checkpoint.absolute().parent
    run_dir = folder.parent
    is_in_one = folder.name == "checkpoints" and (run_dir / RECORD_FILE).is_file()
    return run_dir if is_in_one else None


def _task_of(run_dir: Path, flag: str = "") -> str:
    try:
        return record_of(run_dir)["task"]
    except UserError as error:
        raise UserError(f"{flag}{run_dir}: {error}") from None


def _config_of(run_dir: Path, flag: str = "") -> dict[str, Any]:
    return read_config(str(run_dir / CONFIG_FILE), f"{flag}{run_dir}: its {CONFIG_FILE}")
