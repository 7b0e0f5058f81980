"""Finds attributes of an environment that change, although nobody has declared them as state."""

import pickle
import random
import zlib
from collections import deque
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

DEPTH = 4
"""Containers and objects within each other that are followed."""
Follow = Callable[[Any], Mapping[Any, Any] | None]


def look(
    values: Mapping[str, Any], owned: Collection[int] = (), follow: Follow = lambda _: None
) -> dict[str, Any]:
    """Return, by name, what stays equal until the value changes; NotImplemented: it is not seen.

    Tensors, arrays, numbers, text and random generators are seen, also in a list, tuple, set, deque
    or dictionary. `owned` are addresses of memory that may change. `follow` returns the parts of
    another object by name, or None: then it is not seen.
    """
    return {name: _look_at(value, owned, follow) for name, value in values.items()}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the names of values that are new, or no longer the same."""
    known = (name for name, found in now.items() if found is not NotImplemented)
    return [name for name in known if name not in before or before[name] != now[name]]


def address(tensor: torch.Tensor) -> int:
    """Return the address of the memory that a tensor views."""
    return tensor.untyped_storage().data_ptr()


def _look_at(value: Any, owned: Collection[int], follow: Follow, depth: int = 0) -> Any:
    found, more = NotImplemented, (owned, follow, depth + 1)
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
        case dict() | TensorDict() if depth < DEPTH:
            found = {key: _look_at(item, *more) for key, item in value.items()}
        case list() | tuple() | deque() if depth < DEPTH:
            found = [_look_at(item, *more) for item in value]
        case set() | frozenset():
            found = set(value)
        case _ if depth < DEPTH and (parts := follow(value)) is not None:
            found = {key: _look_at(item, *more) for key, item in parts.items()}
    return found


def _bytes(tensor: torch.Tensor) -> bytes:
    # A view of one number, of any stride, counts as contiguous.
    whole = tensor.clone(memory_format=torch.contiguous_format)
    return whole.view(-1).view(torch.uint8).cpu().numpy().tobytes()
