"""The checkpoints of a run by their file names. Used in every process; imports no torch."""

import re
from datetime import datetime
from pathlib import Path

BEST = "best.pt"  # The checkpoint of the policy with the best evaluation.
INIT = "init.pt"  # The checkpoint with whose networks alone the run began, see `--init-from`.
FINAL = "final_model.pt"  # A second name of the checkpoint with which training ended last.


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the files model_<iteration>.pt of a folder, the oldest first."""
    found = [path for path in folder.glob("model_*.pt") if iteration_of(path) is not None]
    return sorted((p for p in found if not p.is_dir()), key=lambda path: iteration_of(path) or 0)


def iteration_of(path: Path) -> int | None:
    """Return the number of iterations in a checkpoint's file name, or None without one."""
    number = re.fullmatch(r"model_([0-9]{1,12})", path.stem)
    return int(number[1]) if number else None


def set_aside(folder: Path, iteration: int) -> Path | None:
    """Move checkpoints newer than `iteration` into a folder of their own.

    Returns the new folder, or None if there was no newer checkpoint.
    """
    newer = [path for path in checkpoints_in(folder) if (iteration_of(path) or 0) > iteration]
    if not newer:
        return None
    aside = folder / f"replaced_{datetime.now():%Y-%m-%d_%H-%M-%S}"
    aside.mkdir(exist_ok=True)
    for path in newer:
        path.replace(aside / path.name)
    return aside
