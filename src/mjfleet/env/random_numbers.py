"""The random generators of a worker: Python's, NumPy's and torch's."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def random_states(device: str) -> dict[str, Any]:
    """Return the states of this process's random generators: Python's, NumPy's and torch's."""
    numpy: Any = np.random.get_state()
    name, keys, *rest = numpy
    states = {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(keys.astype(np.int64)), *rest),
        "torch": torch.get_rng_state(),
    }
    if torch.device(device).type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_random_states(states: dict[str, Any], device: str) -> None:
    """Restore the states that `random_states` returned."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.device(device).type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)


def equal_states(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two states of the host's generators are equal."""
    (_, keys, *rest), (_, other_keys, *other_rest) = one["numpy"], other["numpy"]
    return (
        (one["python"], rest) == (other["python"], other_rest)
        and torch.equal(keys, other_keys)
        and torch.equal(one["torch"], other["torch"])
    )


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
