"""Which checkpoint a run goes on from, found without importing torch."""

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mjfleet.errors import UserError
from mjfleet.files import checkpoints_in, iteration_of
from mjfleet.launch.config_file import CONFIG_FILE, read_config
from mjfleet.report.record import RECORD_FILE

LATEST = "latest"


@dataclass(frozen=True)
class Resume:
    """Where a run goes on."""

    run_dir: Path | None
    """The run that is continued; None: a new one begins with a checkpoint from elsewhere."""
    checkpoint: Path | None
    """None: the run has none yet and begins anew."""
    config: dict[str, Any]
    """The configuration of that run; empty where there is none."""
    notes: tuple[str, ...] = ()
    """What the user should know about the choice."""

    @property
    def iteration(self) -> int | None:
        """Iterations done, where the file's name says so; 0 without a file."""
        return iteration_of(self.checkpoint) if self.checkpoint else 0


def find_resume(wanted: str, task: str, experiment: Path) -> Resume:
    """What `--resume` means.

    Args:
        wanted: a run directory, a checkpoint, or `latest`.
        task: the task that is to be trained.
        experiment: the folder of run directories in which `latest` looks.

    Raises:
        UserError: there is no such thing, it is damaged, or belongs to another task.
    """
    if wanted == LATEST:
        return _of_run(_latest(experiment), task)
    path = Path(wanted)
    if (path / RECORD_FILE).is_file():
        return _of_run(path, task)
    if path.is_file():
        return _of_file(path, task)
    what = "is no run directory: it has no run.json" if path.is_dir() else "does not exist"
    raise UserError(
        f"--resume {wanted} {what}. It must be a run directory, a checkpoint "
        f"(<run directory>/checkpoints/model_<n>.pt), or `{LATEST}`."
    )


def read_recorded(wanted: str) -> dict[str, Any]:
    """The configuration of the run that `--resume` names, where it names one that can be found."""
    for folder in (Path(wanted), Path(wanted).parent.parent):
        if wanted != LATEST and (folder / RECORD_FILE).is_file():
            return read_config(str(folder / CONFIG_FILE))
    return {}


def why_damaged(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint's file, by the check sums in it; None: nothing."""
    try:
        with zipfile.ZipFile(checkpoint) as archive:
            bad = archive.testzip()
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError) as error:
        return str(error) or type(error).__name__
    return f"{bad} does not match its check sum" if bad else None


def _latest(experiment: Path) -> Path:
    runs = sorted(path.parent for path in experiment.glob(f"*/{RECORD_FILE}"))
    if not runs:
        raise UserError(f"--resume {LATEST}: there is no run in {experiment}.")
    return max(runs, key=lambda run: json.loads((run / RECORD_FILE).read_text())["started"])


def _of_run(run_dir: Path, task: str) -> Resume:
    """The newest good checkpoint of a run."""
    config = _config_of(run_dir, task)
    found = checkpoints_in(run_dir / "checkpoints")
    notes = []
    for checkpoint in reversed(found):
        damage = why_damaged(checkpoint)
        if damage is None:
            return Resume(run_dir, checkpoint, config, tuple(notes))
        notes.append(f"warning: skipped {checkpoint.name}, which is damaged: {damage}")
    if found:
        raise UserError(
            f"--resume {run_dir}: all of its {len(found)} checkpoints are damaged: "
            f"{'; '.join(notes)}."
        )
    notes.append(f"{run_dir} has no checkpoint yet: it begins anew")
    return Resume(run_dir, None, config, tuple(notes))


def _of_file(checkpoint: Path, task: str) -> Resume:
    damage = why_damaged(checkpoint)
    if damage is not None:
        raise UserError(
            f"--resume {checkpoint} is damaged or no checkpoint: {damage}. Its run directory in "
            "its place stands for the newest good one."
        )
    run_dir = checkpoint.absolute().parent.parent
    if checkpoint.absolute().parent.name != "checkpoints" or not (run_dir / RECORD_FILE).is_file():
        return Resume(None, checkpoint, {}, (f"a new run begins with {checkpoint}",))
    # As it was typed, where that is possible.
    if not checkpoint.is_absolute():
        run_dir = Path(*checkpoint.parts[:-2])
    return Resume(run_dir, checkpoint, _config_of(run_dir, task))


def _config_of(run_dir: Path, task: str) -> dict[str, Any]:
    """The configuration of a run of the given task."""
    recorded = json.loads((run_dir / RECORD_FILE).read_text())["task"]
    if recorded != task:
        raise UserError(
            f"--resume {run_dir} is a run of the task {recorded}, not of {task}: "
            f"train {recorded} --resume {run_dir}"
        )
    return read_config(str(run_dir / CONFIG_FILE))
