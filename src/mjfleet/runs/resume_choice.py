"""Which checkpoint a run goes on from, found without importing torch."""

import fcntl
import os
import time
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mjfleet.errors import UserError
from mjfleet.runs.config_yaml import CONFIG_FILE, read_config
from mjfleet.runs.run_json import RECORD_FILE, read_record
from mjfleet.runs.run_lookup import LATEST, find_run, record_of
from mjfleet.utils.atomic_write import checkpoints_in, iteration_of

FLAG = "--resume "
"""How messages name what was typed."""
LOCK_SECONDS = 3.0
"""How long the processes of a run that has just ended may keep its directory locked."""


@dataclass(frozen=True)
class Resume:
    """Where a run goes on."""

    run_dir: Path | None
    """The run that is continued; None: a new one begins with a checkpoint from elsewhere."""
    checkpoint: Path | None
    """None: the run has none yet and begins anew."""
    config: dict[str, Any]
    """The configuration of that run; empty where there is none."""
    lock: int | None = None
    """Keeps others from going on with that run, as long as this descriptor is open."""
    notes: tuple[str, ...] = ()
    """What the user should know about the choice."""

    @property
    def iteration(self) -> int | None:
        """Iterations done, where the file's name says so; 0 without a file."""
        return iteration_of(self.checkpoint) if self.checkpoint else 0


def find_resume(wanted: str, task: str, experiment: Path, take_lock: bool = False) -> Resume:
    """What `--resume` means.

    Args:
        wanted: a run directory, a checkpoint, or what `find_run` takes for a run.
        task: the task that is to be trained.
        experiment: the folder of run directories in which `latest` looks, under the log root.
        take_lock: whether the run is to be locked, before its newest checkpoint is looked for.

    Raises:
        UserError: there is no such thing, it is damaged, under way, or belongs to another task.
    """
    path = find_run(wanted, f"--resume {wanted}", experiment.parent, experiment.name)
    if (path / RECORD_FILE).is_file():
        config = _config_of(path, task)
        lock = lock_run(path) if take_lock else None
        return replace(_of_run(path, config), lock=lock)
    if path.is_file():
        return _of_file(path, task, take_lock)
    raise UserError(
        f"--resume {wanted} is no run directory: it has no {RECORD_FILE}. It must be a run "
        f"directory, a checkpoint (<run directory>/checkpoints/model_<n>.pt), `{LATEST}`, or the "
        "beginning of a run's name."
    )


@dataclass(frozen=True)
class Trained:
    """A policy that a run has learned."""

    run_dir: Path
    checkpoint: Path
    config: dict[str, Any]
    """The configuration of that run."""
    notes: tuple[str, ...] = ()
    """What the user should know about the choice."""


def find_trained(wanted: str, log_root: Path) -> tuple[str, Trained]:
    """The task and the policy that a word for a run, or a checkpoint in one, stands for.

    Raises:
        UserError: there is no such thing, or it is damaged.
    """
    path = find_run(wanted, wanted, log_root)
    run_dir = path if (path / RECORD_FILE).is_file() else _run_of(path)
    if run_dir is None:
        raise UserError(
            f"{wanted} is neither a run directory, nor a checkpoint in one "
            "(<run directory>/checkpoints/model_<n>.pt)."
        )
    try:
        task = record_of(run_dir)["task"]
    except UserError as error:
        raise UserError(f"{run_dir}: {error}") from None
    config = _read_config_of(run_dir, flag="")
    if run_dir != path:
        if damage := why_damaged(path):
            raise UserError(f"{path} is damaged or no checkpoint: {damage}.")
        return task, Trained(run_dir, path, config)
    newest = _of_run(path, config, flag="")
    if newest.checkpoint is None:
        raise UserError(f"{path} has no checkpoint yet.")
    return task, Trained(run_dir, newest.checkpoint, config, newest.notes)


def read_recorded(wanted: str) -> dict[str, Any]:
    """The configuration of the run that `--resume` names, where it names one that can be found."""
    path = Path(wanted)
    run_dir = path if (path / RECORD_FILE).is_file() else _run_of(path)
    if wanted == LATEST or run_dir is None:
        return {}
    return _read_config_of(run_dir)


def take_tasks_dir(recorded: dict[str, Any]) -> str | None:
    """The folder of task folders that a configuration names, where it is there.

    Otherwise the run was recorded elsewhere, and its task may be found in the usual places: the
    configuration names no folder any more.
    """
    folder = recorded.get("tasks_dir")
    if not isinstance(folder, str):
        return None
    if os.path.isdir(folder):
        return folder
    recorded["tasks_dir"] = None
    return None


def _read_config_of(run_dir: Path, flag: str = FLAG) -> dict[str, Any]:
    return read_config(str(run_dir / CONFIG_FILE), f"{flag}{run_dir}: its {CONFIG_FILE}")


def why_damaged(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint's file, by the check sums in it; None: nothing."""
    try:
        with zipfile.ZipFile(checkpoint) as archive:
            bad = archive.testzip()
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError) as error:
        return str(error) or type(error).__name__
    return f"{bad} does not match its check sum" if bad else None


def lock_run(run_dir: Path) -> int | None:
    """Keep others from going on with a run while it is under way.

    Returns:
        A descriptor to be closed at the end; None on a file system without such locks.

    Raises:
        UserError: somebody else has locked it.
    """
    lock = os.open(run_dir, os.O_RDONLY)
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(lock)
                record = read_record(run_dir)
                raise UserError(
                    f"{run_dir} is being trained: by process {record.get('pid')} on "
                    f"{record.get('host')}. Stop it first."
                ) from None
            time.sleep(0.1)
        except OSError:
            os.close(lock)
            return None


def is_locked(run_dir: Path) -> bool:
    """Whether somebody has locked a run; True also on a file system without such locks."""
    lock = os.open(run_dir, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def _of_run(run_dir: Path, config: dict[str, Any], flag: str = FLAG) -> Resume:
    """The newest good checkpoint of a run."""
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
    notes.append(f"{run_dir} has no checkpoint yet: it begins anew")
    return Resume(run_dir, None, config, notes=tuple(notes))


def _of_file(checkpoint: Path, task: str, take_lock: bool) -> Resume:
    damage = why_damaged(checkpoint)
    if damage is not None:
        raise UserError(
            f"--resume {checkpoint} is damaged or no checkpoint: {damage}. To go on from the "
            "newest good one of a run, name the run directory."
        )
    run_dir = _run_of(checkpoint)
    if run_dir is None:
        return Resume(None, checkpoint, {}, notes=(f"a new run begins with {checkpoint}",))
    config = _config_of(run_dir, task)
    return Resume(run_dir, checkpoint, config, lock_run(run_dir) if take_lock else None)


def _run_of(checkpoint: Path) -> Path | None:
    """The run directory in which a checkpoint lies, as it was typed where that is possible."""
    folder = checkpoint.parent if len(checkpoint.parts) > 2 else checkpoint.absolute().parent
    run_dir = folder.parent
    is_in_one = folder.name == "checkpoints" and (run_dir / RECORD_FILE).is_file()
    return run_dir if is_in_one else None


def _config_of(run_dir: Path, task: str) -> dict[str, Any]:
    """The configuration of a run of the given task."""
    try:
        recorded = record_of(run_dir)["task"]
    except UserError as error:
        raise UserError(f"--resume {run_dir}: {error}") from None
    if recorded != task:
        raise UserError(
            f"--resume {run_dir} is a run of the task {recorded}, not of {task}: "
            f"train {recorded} --resume {run_dir}"
        )
    return _read_config_of(run_dir)
