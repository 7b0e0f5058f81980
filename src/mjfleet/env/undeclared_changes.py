"""Finds attributes of an environment that change, although nobody has declared them as state."""

import pickle
import random
import zlib
from collections import deque
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict


def look(values: Mapping[str, Any], owned: Collection[int] = ()) -> dict[str, Any]:
    """Return, by name, what stays equal until the value changes; NotImplemented: it is not seen.

    Tensors, arrays, numbers, text and random generators are seen, also in a list, tuple, set, deque
    or dictionary. No other object is followed. `owned` are addresses of memory that may change.
    """
    return {name: _look_at(value, owned) for name, value in values.items()}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the names of values that are new, or no longer the same."""
    known = (name for name, found in now.items() if found is not NotImplemented)
    return [name for name in known if name not in before or before[name] != now[name]]


def address(tensor: torch.Tensor) -> int:
    """Return the address of the memory that a tensor views."""
    return tensor.untyped_storage().data_ptr()


def _look_at(value: Any, owned: Collection[int], depth: int = 0) -> Any:
    found = NotImplemented
    match value:
        case bool() | int() | float() | str() | bytes() | None | Enum():
            found = type(value), value
        case torch.Tensor() if value.numel() and address(value) in owned:
            found = ()
        case torch.nn.Parameter():  # By `parameter.data`, a change counts no version.
            found = zlib.crc32(_bytes(value.detach()))
        case torch.Tensor():
            # It is held, so that no other gets its id. An inference tensor counts no versions.
            version = _bytes(value) if value.is_inference() else value._version
            found = id(value), version, value
        case np.ndarray() | np.generic():
            found = str(value.dtype), value.shape, value.tobytes()
        case torch.Generator():
            found = _bytes(value.get_state())
        case np.random.Generator() | np.random.RandomState() | random.Random():
            found = pickle.dumps(value)
        case dict() | TensorDict() if depth == 0:
            found = {key: _look_at(item, owned, 1) for key, item in value.items()}
        case list() | tuple() | deque() if depth == 0:
            found = [_look_at(item, owned, 1) for item in value]
        case set() | frozenset():
            found = set(value)
    return found


def _bytes(tensor: torch.Tensor) -> bytes:
    # A view of one number, of any stride, counts as contiguous.
    whole = tensor.clone(memory_format=torch.contiguous_format)
    return whole.view(-1).view(torch.uint8).cpu().numpy().tobytes()
