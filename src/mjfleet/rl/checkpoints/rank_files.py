"""Files with what a learner remembers on one rank, such as a replay. Runs in a worker.

They stand beside the checkpoint that names them, so that none of it travels between the ranks.
"""

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mjfleet.rl.checkpoints.files import UNREADABLE
from mjfleet.runs.checkpoints import CHECKPOINT_BYTES, forget_rank_files, rank_file_name
from mjfleet.utils.atomic_write import write_atomically
from mjfleet.utils.safe_read import open_regular

logger = logging.getLogger(__name__)


def write_rank_file(
    folder: Path, rank: int, iteration: int, state: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Write a rank's state; return its name, size and hash, or None if it could not be written.

    Whoever writes the checkpoint removes older files. Those that are still there, as where another
    host's worker has no checkpoints, are removed now, but the newest one.
    """
    path = folder / rank_file_name(rank, iteration)
    forget_rank_files(folder, path.name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda file: torch.save(dict(state), file))
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        logger.warning("%s could not be written: %s", path, error.strerror)
        return None
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": found}


def read_rank_file(folder: Path, record: Mapping[str, Any] | None) -> dict[str, Any] | str:
    """Return the state that a checkpoint of `folder` names by `record`, or why there is none."""
    if record is None:
        return "it was not saved with this checkpoint"
    path = folder / Path(record["name"]).name
    try:
        opened: Any = open_regular(path, CHECKPOINT_BYTES)
        with opened as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != record["sha256"]:
                return f"{path.name} is damaged"
            file.seek(0)
            return torch.load(file, weights_only=True, map_location="cpu")
    except OSError as error:
        return f"{path.name}: {error.strerror}"
    except UNREADABLE as error:
        return f"{path.name} is damaged: {error}"
