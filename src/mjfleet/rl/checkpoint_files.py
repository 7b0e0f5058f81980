"""Checkpoints: files from which training goes on as if it had never stopped. Runs in a worker.

The format is rsl_rl's, with a dictionary of our own under OWN. `launch.resume` finds the files.
"""

import io
import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mjfleet.errors import UserError
from mjfleet.runs.checkpoint_names import checkpoints_in
from mjfleet.utils.atomic_write import write_atomically

OWN = "mjfleet"


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a file, whole or not at all.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    write_atomically(path, lambda file: file.write(pack(state)))


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What a file holds, tensors on the CPU. Reading it runs no code that is in it.

    Raises:
        UserError: it cannot be read, or is no checkpoint.
    """
    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
    except OSError as error:
        raise UserError(f"checkpoint {path}: {error.strerror}.") from None
    except pickle.UnpicklingError:
        raise UserError(
            f"checkpoint {path} holds more than tensors and plain data: it is damaged, or loading "
            "it could run somebody's code."
        ) from None
    except (RuntimeError, EOFError, ValueError, KeyError) as error:
        first = str(error).partition("\n")[0]
        raise UserError(f"checkpoint {path} is damaged: {first}") from None
    needed = {"actor_state_dict", "critic_state_dict", "optimizer_state_dict", "iter"}
    if not isinstance(state, dict) or not needed <= state.keys():
        raise UserError(f"{path} is no checkpoint: it lacks {', '.join(sorted(needed))}.")
    return state


def remove_oldest(folder: Path, keep: int | None) -> None:
    """Leave the `keep` newest checkpoints in a folder; None: all."""
    if keep is not None:
        for path in checkpoints_in(folder)[:-keep]:
            path.unlink(missing_ok=True)


def pack(state: Any) -> bytes:
    """A state as bytes; a write that fails then fails in Python, with its reason."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def unpack(data: bytes) -> Any:
    """What `pack` took in, tensors on the CPU."""
    return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")


def random_states(device: str) -> dict[str, Any]:
    """Where the random generators of this process are: Python's, NumPy's, torch's."""
    numpy: Any = np.random.get_state()
    name, keys, *rest = numpy
    states = {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(keys.astype(np.int64)), *rest),
        "torch": torch.get_rng_state(),
    }
    return states if device == "cpu" else states | {"cuda": torch.cuda.get_rng_state(device)}


def restore_random_states(states: dict[str, Any], device: str) -> None:
    """Put the random generators where `random_states` found them."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(states["torch"])
    if "cuda" in states and device != "cpu":
        torch.cuda.set_rng_state(states["cuda"], device)


@contextmanager
def own_random_numbers(seed: int, device: str) -> Iterator[None]:
    """Seed the random generators of this process for the block, and put them back behind it."""
    before = random_states(device)
    seed_everything(seed)
    try:
        yield
    finally:
        restore_random_states(before, device)


def seed_everything(seed: int) -> None:
    """Seed the random generators of this process.

    torch's begin alike for all small seeds, and networks are the first to be drawn from them: those
    of cart-pole learned a quarter later than others. So it gets a number that is mixed well.
    """
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))


def check_shapes(path: Path, saved: dict[str, Any], built: dict[str, Any]) -> None:
    """Refuse a checkpoint of other networks.

    Args:
        path: the file, for the message.
        saved: what it holds.
        built: what the algorithm of this run would save.

    Raises:
        UserError: shapes differ; names both.
    """
    for network in ("actor_state_dict", "critic_state_dict", "rnd_state_dict"):
        ours, theirs = built.get(network), saved.get(network)
        if ours is None or theirs is None:
            continue
        shapes = [{k: tuple(v.shape) for k, v in state.items()} for state in (theirs, ours)]
        if shapes[0] != shapes[1]:
            name = network.removesuffix("_state_dict")
            raise UserError(
                f"checkpoint {path} is of another network: its {name} is {matrices(theirs)}, this "
                f"run's is {matrices(ours)}."
            )


def matrices(state: dict[str, Any]) -> str:
    """A network in a few words: its matrices."""
    return ", ".join(f"{key} {list(v.shape)}" for key, v in state.items() if v.ndim > 1)
