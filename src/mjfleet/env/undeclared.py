"""Finds attributes of an environment that change, although nobody has declared them as state."""

import random
from collections import deque
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any

import numpy as np
import torch

PLAIN = (bool, int, float, str, bytes, type(None), Enum)


class Look:
    """One flat look at named values, to tell later which have changed.

    It sees tensors, arrays, numbers, text and random generators, also in a list, tuple, set, deque
    or dictionary; it follows no other object.
    """

    def __init__(self, values: Mapping[str, Any], owned: Collection[int] = ()) -> None:
        """Look at `values`; `owned` are addresses of memory whose tensors may change."""
        self._seen = {name: _copy(value, owned) for name, value in values.items()}

    def changed(self, values: Mapping[str, Any], owned: Collection[int] = ()) -> list[str]:
        """Return the names of values that are new, or no longer the same."""
        now = {name: _copy(value, owned) for name, value in values.items()}
        return [
            name
            for name, value in now.items()
            if value is not NotImplemented and not _is_same(self._seen.get(name), value)
        ]

    def unseen(self) -> list[str]:
        """Return the names of values of types that are not looked at."""
        return [name for name, value in self._seen.items() if value is NotImplemented]


def address(tensor: torch.Tensor) -> int:
    """Return the address of the memory that a tensor views."""
    return tensor.untyped_storage().data_ptr()


def _copy(value: Any, owned: Collection[int], depth: int = 0) -> Any:
    """Return what is equal as long as a value does not change; NotImplemented: it is not seen."""
    found = value if isinstance(value, PLAIN) else NotImplemented
    match value:
        case torch.Tensor() if value.numel() and address(value) in owned:
            found = None
        case torch.Tensor():
            # The tensor is kept, so that no other takes its place.
            found = value, None if value.is_inference() else value._version
        case np.ndarray() | np.generic():
            found = np.array(value)
        case torch.Generator():
            found = value.get_state()
        case np.random.Generator():
            found = repr(value.bit_generator.state)
        case random.Random():
            found = value.getstate()
        case dict() if depth == 0:
            found = {key: _copy(item, owned, 1) for key, item in value.items()}
        case list() | tuple() | deque() if depth == 0:
            found = [_copy(item, owned, 1) for item in value]
        case set() | frozenset():
            found = set(value)
    return found


def _is_same(one: Any, other: Any) -> bool:
    if one is other or type(one) is not type(other):
        return one is other
    match one:
        case np.ndarray() | torch.Tensor():
            same = np.array_equal(one, other)
        case (torch.Tensor(), version):
            same = one[0] is other[0] and version == other[1]
        case dict():
            same = one.keys() == other.keys() and all(_is_same(one[k], other[k]) for k in one)
        case list():
            same = len(one) == len(other) and all(map(_is_same, one, other))
        case _:
            same = one == other
    return bool(same)
