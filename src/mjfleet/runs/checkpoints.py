"""The checkpoints of a run: their names, and what their files say. Imports no torch."""

import json
import os
import re
import shutil
import zipfile
import zlib
from pathlib import Path
from typing import Any

from mjfleet.utils.safe_read import open_regular

BEST = "best.pt"  # The checkpoint of the policy with the best evaluation.
INIT = "init.pt"  # The checkpoint with whose networks alone the run began, see `--init-from`.
FINAL = "final_model.pt"  # A second name of the checkpoint with which training ended last.
CHECKPOINT_BYTES = 2**40
ABOUT = "archive/mjfleet.json"
"""The record of what a checkpoint says of itself, for those who do not import torch."""
ABOUT_BYTES = 50_000


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the files model_<iteration>.pt of a folder, the oldest first."""
    found = {path: iteration_of(path) for path in folder.glob("model_*.pt") if not path.is_dir()}
    known = [(number, path) for path, number in found.items() if number is not None]
    return [path for _, path in sorted(known)]


def rank_file_name(rank: int, iteration: int) -> str:
    """Return the name of the file with what a learner remembers on one rank, see rank_files.py."""
    return f"rank{rank}_{iteration}.pt"


def rank_files_in(folder: Path, rank: int | None = None) -> dict[Path, int]:
    """Return those files of a rank, or of all, in the folder of the checkpoints, with their numbers
    of iterations; the fewest first."""
    files = folder.glob(f"rank{'*' if rank is None else rank}_*.pt")
    numbers = {path: path.stem.rpartition("_")[2] for path in files if not path.is_dir()}
    known = [(int(number), path) for path, number in numbers.items() if number.isdecimal()]
    return {path: number for number, path in sorted(known)}


def rank_files_of(checkpoint: Path) -> list[Path]:
    """Return what learners remembered on all ranks when a checkpoint was written."""
    done = iterations_done(checkpoint)
    return [path for path, number in rank_files_in(checkpoint.parent).items() if number == done]


def rank_files_before(checkpoint: Path) -> list[Path]:
    """Return the files of all ranks of earlier checkpoints than this model_<iteration>.pt."""
    done = iteration_of(checkpoint) or 0
    return [path for path, number in rank_files_in(checkpoint.parent).items() if number < done]


def forget_rank_files(folder: Path, name: str) -> None:
    """Remove the files of a rank, before that of this name is written, but the one of the newest
    checkpoint: where there are none, as on other hosts, the newest file of fewer iterations."""
    rank, _, number = Path(name).stem.removeprefix("rank").partition("_")
    files = rank_files_in(folder, int(rank))
    older = [path for path in files if files[path] < int(number)]
    kept = [path for path in older if (folder / f"model_{files[path]}.pt").exists()]
    for path in files.keys() - {*(kept or older)[-1:]}:
        path.unlink(missing_ok=True)


def iteration_of(path: Path) -> int | None:
    """Return the number of iterations in a checkpoint's file name, or None without one."""
    number = re.fullmatch(r"model_([0-9]{1,12})", path.stem)
    return int(number[1]) if number else None


def iterations_done(checkpoint: Path) -> int | None:
    """Return the iterations done in a checkpoint, which its name or the file tells; else None."""
    number = iteration_of(checkpoint)
    return counted(checkpoint, "iteration") if number is None else number


def counted(checkpoint: Path, what: str) -> int | None:
    """Return a number of things that a checkpoint says of itself, or None if it does not."""
    number = about(checkpoint).get(what)
    return number if type(number) is int and 0 <= number < 10**15 else None


def why_damaged(checkpoint: Path) -> str | None:
    """Read the whole file of a checkpoint; return what is wrong with it, or None."""
    try:
        with open_regular(checkpoint, CHECKPOINT_BYTES) as file, zipfile.ZipFile(file) as archive:
            bad = archive.testzip()
    except OSError as error:
        return error.strerror
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError) as error:
        return str(error) or type(error).__name__
    return f"{bad} does not match its check sum" if bad else None


def about(checkpoint: Path) -> dict[str, Any]:
    """Return what a checkpoint says of itself: `iteration`, `total_steps`, `task`, `task_hash`,
    `networks`.

    Empty if it says nothing, as those of earlier versions and of rsl_rl, or cannot be read.
    """
    try:
        with open_regular(checkpoint, CHECKPOINT_BYTES) as file, zipfile.ZipFile(file) as archive:
            record = archive.getinfo(ABOUT)
            if record.file_size > ABOUT_BYTES:
                return {}
            found = json.loads(archive.read(record))
    except (OSError, KeyError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error):
        return {}
    return found if isinstance(found, dict) else {}


def name_also(path: Path, other: Path) -> None:
    """Give a file a second name, or make a copy where the file system has no such links."""
    aside = other.with_name(f".{other.name}.{os.getpid()}.tmp")
    aside.unlink(missing_ok=True)
    try:
        os.link(path, aside)
    except OSError:
        shutil.copyfile(path, aside)
    aside.replace(other)
