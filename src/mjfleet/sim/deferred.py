"""Numbers that a device computes and the host reads later, all of them at once. Runs in a worker.

Reading a number from a GPU waits for all that was launched before.
"""

from collections.abc import Callable
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

import torch

T = TypeVar("T")


class Deferred(NamedTuple, Generic[T]):
    """Numbers on a device, and the function that decodes them once they are read."""

    numbers: torch.Tensor
    """A tensor of any shape and type, which is read as float64."""
    decode: Callable[[list[float]], T]
    """Returns what follows from the flattened numbers."""


def read(*deferred: Deferred[Any]) -> list[Any]:
    """Read and decode values whose numbers are all on one device, and wait for it once."""
    flat = [value.numbers.reshape(-1).to(torch.float64) for value in deferred]
    numbers = iter(torch.cat(flat).tolist())
    return [value.decode(list(islice(numbers, value.numbers.numel()))) for value in deferred]
