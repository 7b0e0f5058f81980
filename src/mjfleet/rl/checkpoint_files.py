"""A checkpoint as a file, and its networks' shapes. Runs in a worker.

The format is rsl_rl's. mjfleet's own state is a dictionary under the key OWN.
"""

import io
import json
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mjfleet.errors import UserError
from mjfleet.rl.checkpoint_values import check_values
from mjfleet.runs.checkpoint_archive import ABOUT, why_damaged

UNREADABLE = (
    ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, MemoryError,
    RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""What torch raises for a damaged file."""


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint, with its tensors on the CPU. No code in the file is run.

    Raises:
        UserError: the file cannot be read, or is not a checkpoint.
    """
    if damage := why_damaged(path, is_thorough=False):
        raise UserError(f"checkpoint {path}: {damage}.")
    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
    except OSError as error:
        raise UserError(f"checkpoint {path}: {error.strerror}.") from None
    except pickle.UnpicklingError:
        raise UserError(
            f"checkpoint {path} holds more than tensors and plain data: it is damaged, or loading "
            "it could run somebody's code."
        ) from None
    except UNREADABLE as error:
        first = str(error).partition("\n")[0]
        raise UserError(f"checkpoint {path} is damaged: {first}") from None
    needed = {"actor_state_dict", "critic_state_dict", "optimizer_state_dict", "iter"}
    if not isinstance(state, dict) or not needed <= state.keys():
        raise UserError(f"{path} is no checkpoint: it lacks {', '.join(sorted(needed))}.")
    try:
        check_values(state, path.stat().st_size)
    except ValueError as error:
        raise UserError(f"checkpoint {path} is damaged: {error}.") from None
    return state


def pack(state: Any) -> bytes:
    """Return a state as bytes. Writing them to a file then raises an error with its reason."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def pack_checkpoint(state: Any, about: Mapping[str, Any]) -> bytes:
    """Return a checkpoint as bytes, with what `checkpoint_archive.about` reads of it."""
    buffer = io.BytesIO(pack(state))
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr(ABOUT, json.dumps(about))
    return buffer.getvalue()


def unpack(data: bytes | bytearray) -> Any:
    """Return the state that `pack` was given, with its tensors on the CPU."""
    return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")


def check_shapes(path: Path, saved: dict[str, Any], built: dict[str, Any]) -> None:
    """Compare the networks that a checkpoint has `saved` with those that this run has `built`.

    Raises:
        UserError: shapes differ. The message names both.
    """
    for name in ("actor", "critic", "rnd"):
        key = f"{name}_state_dict"
        if key not in built or key not in saved:
            continue
        theirs, ours = saved[key], built[key]
        if ours and not theirs:
            raise UserError(
                f"checkpoint {path} has no {name}: it is a policy alone, which `play` shows and "
                "`train --init-from` begins with."
            )
        if {k: v.shape for k, v in theirs.items()} != {k: v.shape for k, v in ours.items()}:
            raise UserError(
                f"checkpoint {path} is of another network: its {name} is {matrices(theirs)}, this "
                f"run's is {matrices(ours)}."
            )


def matrices(state: dict[str, Any]) -> str:
    """Return the names and shapes of a network's matrices."""
    return ", ".join(f"{key} {list(v.shape)}" for key, v in state.items() if v.ndim > 1)
