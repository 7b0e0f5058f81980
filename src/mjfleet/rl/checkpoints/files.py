"""Reads and writes the files of checkpoints. Runs in a worker.

The format is rsl_rl's. mjfleet's own state is a dictionary under the key OWN.
"""

import io
import json
import logging
import pickle
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mjfleet.config.validation import SHOWN_CHARS
from mjfleet.errors import UserError
from mjfleet.rl.learner import key_of
from mjfleet.runs.checkpoints import (
    ABOUT,
    BEST,
    CHECKPOINT_BYTES,
    FINAL,
    checkpoints_in,
    name_also,
    rank_files_before,
)
from mjfleet.utils.atomic_write import write_atomically
from mjfleet.utils.safe_read import open_regular

OWN = "mjfleet"
UNREADABLE = (
    ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, MemoryError,
    RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""What torch raises for a damaged file."""
NAMED_DIFFERENCES = 4  # How many differences a message names.
WRITE_ATTEMPTS = 3
"""Consecutive failures to write a checkpoint that end training."""
WRITE_PAUSE_SECONDS = 1.0
"""Between attempts at the end of a run, when no later iteration would save."""

logger = logging.getLogger(__name__)


class CheckpointError(RuntimeError):
    """Checkpoints cannot be written."""


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint, with its tensors on the CPU. No code in the file is run.

    Raises:
        UserError: the file cannot be read, or is not a checkpoint.
    """
    try:
        with open_regular(path, CHECKPOINT_BYTES) as file:
            state = torch.load(file, weights_only=True, map_location="cpu")
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
    needed = {"actor_state_dict", "iter"}
    if missing := needed.difference(state if isinstance(state, dict) else ()):
        listed = ", ".join(sorted(missing))
        raise UserError(f"{path} is no checkpoint of mjfleet or of rsl_rl 5: it lacks {listed}.")
    return state


def load_policy(path: Path, policy: torch.nn.Module) -> int:
    """Load a checkpoint's policy into a network; return its number of iterations.

    Raises:
        UserError: the file is not a checkpoint, or its policy is another network.
    """
    state = read_checkpoint(path)
    check_networks(path, state, {"actor": policy}, ["actor"])
    policy.load_state_dict(state[key_of("actor")])
    policy.eval()
    return state["iter"]


def pack(state: Any) -> bytes:
    """Return a state as bytes. Writing them to a file then raises an error with its reason."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def pack_checkpoint(state: Any, about: Mapping[str, Any]) -> bytes:
    """Return a checkpoint as bytes, with what `about` reads of it."""
    buffer = io.BytesIO(pack(state))
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr(ABOUT, json.dumps(about))
    return buffer.getvalue()


def unpack(data: bytes | bytearray) -> Any:
    """Return the state that `pack` was given, with its tensors on the CPU."""
    return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")


def check_networks(
    path: Path, saved: Mapping[str, Any], built: Mapping[str, torch.nn.Module], names: Sequence[str]
) -> None:
    """Compare networks that are `saved` with those of these names that this run has `built`.

    Raises:
        UserError: shapes differ. The message names both.
    """
    for name in names:
        if misfit := misfit_of(saved[key_of(name)], built[name].state_dict()):
            raise UserError(f"checkpoint {path} is of another network. Of its {name}, {misfit}.")


def misfit_of(saved: Mapping[str, Any], built: Mapping[str, Any]) -> str:
    """Return how the tensors of a checkpoint differ from a network's; empty if none does."""
    theirs, ours = (
        {k: list(v.shape) if isinstance(v, torch.Tensor) else "no tensor" for k, v in x.items()}
        for x in (saved, built)
    )
    names = [name for name in theirs | ours if theirs.get(name) != ours.get(name)]
    return "; ".join(
        f"{name!s:.{SHOWN_CHARS}} is {theirs.get(name, 'absent')} there, "
        f"{ours.get(name, 'absent')} here"
        for name in names[:NAMED_DIFFERENCES]
    )


def check_optimizer(saved: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Check that an optimiser's saved state has the shapes of the parameters that it has now.

    Raises:
        ValueError: it has others.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for place, entries in saved["state"].items():
        if not isinstance(place, int) or not 0 <= place < len(parameters):
            raise ValueError(f"the optimiser's state has a parameter {place!r}")
        for name, value in entries.items():
            shape = getattr(value, "shape", ())
            if shape not in ((), (1,), parameters[place].shape):
                raise ValueError(
                    f"the optimiser's {name} of parameter {place} is {list(shape)}, and should be "
                    f"{list(parameters[place].shape)}"
                )


def check_fields(saved: Mapping[str, Any], now: Mapping[str, torch.Tensor]) -> None:
    """Raise ValueError unless all saved fields are tensors with the shapes that they have now."""
    for key, value in saved.items():
        if not isinstance(value, torch.Tensor) or key not in now or value.shape != now[key].shape:
            raise ValueError(f"field {key!r} is not what it is now")


class CheckpointSchedule:
    """The checkpoints of a folder: model_<iteration>.pt, BEST of the best evaluation, and FINAL."""

    def __init__(self, folder: Path, interval: int, keep: int | None) -> None:
        """Write to `folder` every `interval` iterations; keep the `keep` newest (None: all)."""
        self._folder, self._interval, self._keep = folder, interval, keep
        self._failures = 0

    def due(self, iteration: int, *, is_last: bool, is_best: bool) -> list[Path]:
        """Return the files to be written after an iteration."""
        is_due = is_last or iteration % self._interval == 0
        names = [f"model_{iteration}.pt"] * is_due + [BEST] * is_best
        return [self._folder / name for name in names]

    def write(self, paths: list[Path], data: bytes, *, is_last: bool) -> bool:
        """Write the same checkpoint to several files; return whether that succeeded.

        Raises:
            CheckpointError: it has failed several times in a row.
        """
        for attempt in range(WRITE_ATTEMPTS if is_last else 1):
            time.sleep(WRITE_PAUSE_SECONDS if attempt else 0.0)
            path = paths[0]
            try:
                for path in paths:
                    write_atomically(path, lambda file: file.write(data))
                if is_last:
                    path = self._folder / FINAL
                    name_also(paths[0], path)
                old = rank_files_before(paths[0])
                if self._keep is not None:
                    old += checkpoints_in(self._folder)[: -self._keep]
                for path in old:
                    path.unlink(missing_ok=True)
            except OSError as error:
                self._failures += 1
                if self._failures >= WRITE_ATTEMPTS:
                    before = checkpoints_in(self._folder)
                    left = f"{before[-1].name} is intact" if before else "there is none before it"
                    raise CheckpointError(
                        f"{path} could not be written, as {WRITE_ATTEMPTS - 1} times before: "
                        f"{error.strerror}; {left}."
                    ) from error
                logger.warning(
                    "%s could not be written, training continues: %s", path, error.strerror
                )
            else:
                self._failures = 0
                return True
        return False
