"""A checkpoint as a file, the random states in it, and its networks' shapes. Runs in a worker.

The format is rsl_rl's. mjfleet's own state is a dictionary under the key OWN.
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

OWN = "mjfleet"


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint, with its tensors on the CPU. No code in the file is run.

    Raises:
        UserError: the file cannot be read, or is not a checkpoint.
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


def pack(state: Any) -> bytes:
    """Return a state as bytes. Writing them to a file then raises an error with its reason."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def unpack(data: bytes | bytearray) -> Any:
    """Return the state that `pack` was given, with its tensors on the CPU."""
    return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")


def random_states(device: str) -> dict[str, Any]:
    """Return the states of this process's random generators: Python's, NumPy's and torch's."""
    numpy: Any = np.random.get_state()
    name, keys, *rest = numpy
    states = {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(keys.astype(np.int64)), *rest),
        "torch": torch.get_rng_state(),
    }
    return states if device == "cpu" else states | {"cuda": torch.cuda.get_rng_state(device)}


def restore_random_states(states: dict[str, Any], device: str) -> None:
    """Restore the states that `random_states` returned."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(states["torch"])
    if "cuda" in states and device != "cpu":
        torch.cuda.set_rng_state(states["cuda"], device)


@contextmanager
def own_random_numbers(seed: int, device: str) -> Iterator[None]:
    """Seed the random generators of this process for a block; restore their states after it."""
    before = random_states(device)
    seed_everything(seed)
    try:
        yield
    finally:
        restore_random_states(before, device)


def seed_everything(seed: int) -> None:
    """Seed the random generators of this process.

    torch's first numbers are similar for all small seeds, and they initialise the networks: those
    of cart-pole learned a quarter more slowly than others. torch thus gets a hash of the seed.
    """
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))


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
        if {k: v.shape for k, v in theirs.items()} != {k: v.shape for k, v in ours.items()}:
            raise UserError(
                f"checkpoint {path} is of another network: its {name} is {matrices(theirs)}, this "
                f"run's is {matrices(ours)}."
            )


def matrices(state: dict[str, Any]) -> str:
    """Return the names and shapes of a network's matrices."""
    return ", ".join(f"{key} {list(v.shape)}" for key, v in state.items() if v.ndim > 1)
