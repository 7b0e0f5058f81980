"""Numbers that a device computes and the host reads later, all of them at once. Runs in a worker.

Reading a number from a GPU waits for all that was launched before.
"""

from collections.abc import Callable
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

import torch

T = TypeVar("T")


class Unread(NamedTuple, Generic[T]):
    """Something that follows from numbers on a device."""

    numbers: torch.Tensor
    """Of any shape and type. They are read as float64."""
    decode: Callable[[list[float]], T]
    """Returns what follows from the flattened numbers."""


def read(*unread: Unread[Any]) -> list[Any]:
    """Return what each stands for. All are on one device; this waits for it once."""
    flat = [part.numbers.reshape(-1).to(torch.float64) for part in unread]
    numbers = iter(torch.cat(flat).tolist())
    return [part.decode(list(islice(numbers, part.numbers.numel()))) for part in unread]


def first(numbers: list[float]) -> float:
    """Decode a single number."""
    return numbers[0]
