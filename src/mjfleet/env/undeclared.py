"""Finds attributes of an environment that change, although nobody has declared them as state."""

import pickle
import random
from collections import deque
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any

import numpy as np
import torch


class Look:
    """One flat look at named values, to tell later which have changed.

    It sees tensors, arrays, numbers, text and random generators, also in a list, tuple, set, deque
    or dictionary; it follows no other object.
    """

    def __init__(self, values: Mapping[str, Any], owned: Collection[int] = ()) -> None:
        """Look at `values`; `owned` are addresses of memory whose tensors may change."""
        self._seen = {name: _look_at(value, owned) for name, value in values.items()}

    def changed(self, values: Mapping[str, Any], owned: Collection[int] = ()) -> list[str]:
        """Return the names of values that are new, or no longer the same."""
        now = {name: _look_at(value, owned) for name, value in values.items()}
        known = (name for name, value in now.items() if value is not NotImplemented)
        return [name for name in known if self._seen.get(name) != now[name]]

    def unseen(self) -> list[str]:
        """Return the names of values of types that are not looked at."""
        return [name for name, value in self._seen.items() if value is NotImplemented]


class _Held:
    """A tensor, which is equal to itself alone, and is held so that no other takes its place."""

    __hash__ = object.__hash__

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and self.tensor is other.tensor


def address(tensor: torch.Tensor) -> int:
    """Return the address of the memory that a tensor views."""
    return tensor.untyped_storage().data_ptr()


def _look_at(value: Any, owned: Collection[int], depth: int = 0) -> Any:
    """Return what is equal as long as a value does not change; NotImplemented: it is not seen."""
    found = NotImplemented
    match value:
        case bool() | int() | float() | str() | bytes() | None | Enum():
            found = type(value), value
        case torch.Tensor() if value.numel() and address(value) in owned:
            found = ()
        case torch.Tensor() if value.is_inference():  # It counts no versions.
            numbers = value.contiguous().view(-1).view(torch.uint8)
            found = _Held(value), numbers.cpu().numpy().tobytes()
        case torch.Tensor():
            found = _Held(value), value._version
        case np.ndarray() | np.generic():
            found = str(value.dtype), value.shape, value.tobytes()
        case torch.Generator():
            found = value.get_state().numpy().tobytes()
        case np.random.Generator() | np.random.RandomState() | random.Random():
            found = pickle.dumps(value)
        case dict() if depth == 0:
            found = {key: _look_at(item, owned, 1) for key, item in value.items()}
        case list() | tuple() | deque() if depth == 0:
            found = [_look_at(item, owned, 1) for item in value]
        case set() | frozenset():
            found = set(value)
    return found
