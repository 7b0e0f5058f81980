"""Replaces the files of a run that continues, once the new attempt has done an iteration.

An attempt that fails before changes nothing but run.json, its failure records and its logs.
"""

import shutil
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from mjfleet.runs.checkpoints import INIT, checkpoints_in, iteration_of
from mjfleet.runs.config_yaml import CONFIG_FILE, config_of_attempt
from mjfleet.runs.metrics_csv import METRICS_FILE, completed_iterations
from mjfleet.runs.run_json import read_record
from mjfleet.runs.task_snapshot import FOLDER
from mjfleet.utils.console import print_line

PENDING = ".attempt.tmp"
"""The folder in a run directory for what `adopt_attempt` puts in its place."""


def adopt_attempt(run_dir: Path, begun: int) -> None:
    """Replace the files of the last attempt, since the first iteration after `begun` is done.

    What the run has beyond `begun` is kept aside. A new run has no such files.
    """
    pending = run_dir / PENDING
    if not pending.exists():
        return
    for folder in (run_dir, run_dir / "checkpoints", run_dir / "failures", run_dir / "videos"):
        for path in folder.glob(".*.tmp"):  # Killed processes have left them.
            if not path.is_dir():
                path.unlink()
    _keep_aside(run_dir, begun)
    attempts = len(read_record(run_dir)["attempts"])
    if (run_dir / CONFIG_FILE).exists():  # An attempt that was killed at once has none.
        copy = config_of_attempt(run_dir, attempts - 1, attempts)
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(run_dir / CONFIG_FILE, copy)
    (pending / CONFIG_FILE).replace(run_dir / CONFIG_FILE)
    for kept in (pending / FOLDER).glob("*"):
        (run_dir / FOLDER).mkdir(exist_ok=True)
        kept.rename(run_dir / FOLDER / kept.name)
    shutil.rmtree(pending)


def undone_checkpoint(run_dir: Path) -> Path | None:
    """Return the last attempt's checkpoint, if that attempt did no iteration; else None."""
    *_, last = read_record(run_dir).get("attempts") or [{}]
    is_undone = last.get("is_undone") or (run_dir / PENDING).exists()
    name = last.get("checkpoint")
    return run_dir / "checkpoints" / name if is_undone and name and name != INIT else None


def _keep_aside(run_dir: Path, begun: int) -> None:
    """Move checkpoints, and copy metrics, of iterations that come again."""
    checkpoints = run_dir / "checkpoints"
    newer = [path for path in checkpoints_in(checkpoints) if (iteration_of(path) or 0) > begun]
    if newer or (begun == 0 and completed_iterations(run_dir)):
        aside = checkpoints / f"replaced_{datetime.now():%Y-%m-%d_%H-%M-%S}"
        aside.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):
            shutil.copy(run_dir / METRICS_FILE, aside)
        for path in newer:
            path.replace(aside / path.name)
        print_line(
            f"iterations after {begun} will be repeated; their checkpoints and {METRICS_FILE} are "
            f"in {aside}"
        )
