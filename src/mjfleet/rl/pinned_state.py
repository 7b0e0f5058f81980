"""Keeps tensors of a CUDA graph at the addresses of its capture. Runs in a worker.

A graph contains the addresses of tensors, and the Python numbers and branches of its capture.
"""

import logging
import random
from collections import deque
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from mjfleet.env.step_recorder import StepRecorder
from mjfleet.sim import Simulation

LEAVES = (
    torch.Tensor, Simulation, StepRecorder, BuiltinFunctionType, Enum, random.Random,
    logging.Logger, type, FunctionType, MethodType, ModuleType, partial,
)  # fmt: skip
"""Types whose attributes are not followed. Simulations and recorders write in place."""
HOST_GENERATORS = (np.random.Generator, random.Random)
"""Random generators whose numbers would become constants of a graph."""


class CaptureError(RuntimeError):
    """Something cannot be captured in a CUDA graph."""


class PinnedState:
    """All tensors and constants that can be reached from some objects.

    They are reached through attributes, dictionaries, lists and tuples, and through parameters,
    buffers and numbers of networks.
    """

    def __init__(self, owners: dict[str, Any]) -> None:
        """Find them. `owners` are the objects, by names for messages."""
        self._owners = owners
        self._containers, self._leaves = self._find()
        constants = {p: v for p, v in self._leaves.items() if not isinstance(v, torch.Tensor)}
        self._constants = {path: _copy(value) for path, value in constants.items()}

    def tensors(self) -> list[torch.Tensor]:
        """Return all tensors, each once."""
        found = [value for value in self._leaves.values() if isinstance(value, torch.Tensor)]
        return list({id(tensor): tensor for tensor in found}.values())

    def settle(self) -> None:
        """Put each tensor that was replaced back in its place, with the values of the new one.

        Raises:
            CaptureError: something besides the values of tensors has changed.
        """
        now = self._find()[1]
        if changed := now.keys() ^ self._leaves.keys():
            raise CaptureError(f"{min(changed)} was added or removed")
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for path, old in self._leaves.items():
            new = now[path]
            if not isinstance(old, torch.Tensor):
                if not equal(self._constants[path], _copy(new)):
                    raise CaptureError(f"{path} has changed, and is no tensor")
                if hasattr(type(new), "__next__"):
                    raise CaptureError(f"{path} is an iterator, and is no tensor")
            elif not isinstance(new, torch.Tensor) or (
                (old.shape, old.dtype, old.device) != (new.shape, new.dtype, new.device)
            ):
                raise CaptureError(f"{path} has changed its shape or type")
            elif old is not new:
                # Copied first, because the new value of a tensor may be another pinned tensor.
                copies.append((old, new.clone()))
        self._refill_containers()
        for old, value in copies:
            old.copy_(value)

    def put_back(self) -> None:
        """Put tensors and constants back in their places. Tensors keep their current values."""
        self._refill_containers()
        for path, constant in self._constants.items():
            value = self._leaves[path]
            if isinstance(value, np.ndarray):
                value[...] = constant
            elif isinstance(value, HOST_GENERATORS):
                set_generator_state(value, constant)
            elif isinstance(value, set):
                value.clear()
                value.update(constant)

    def _refill_containers(self) -> None:
        for container, items in self._containers:
            _refill(container, items, _items(container) or {})

    def _find(self) -> tuple[list[tuple[Any, dict[Any, Any]]], dict[str, Any]]:
        """Return all containers with their items, and all other values by their paths."""
        containers: list[tuple[Any, dict[Any, Any]]] = []
        leaves: dict[str, Any] = {}
        seen: set[int] = set()

        def follow(path: str, value: Any) -> None:
            items = _items(value)
            if items is None:
                leaves[path] = value
                return
            if id(value) in seen:
                return
            seen.add(id(value))
            containers.append((value, items))
            for key, item in items.items():
                follow(f"{path}.{key}", item)

        for name, owner in self._owners.items():
            follow(name, owner)
        return containers, leaves


def _items(value: Any) -> dict[Any, Any] | None:
    """Return what a container holds, by key; None for other values."""
    if isinstance(value, LEAVES):
        return None
    items: dict[Any, Any] | None
    match value:
        case torch.nn.Module():
            parts = {part: getattr(value, part) for part in ("_parameters", "_buffers", "_modules")}
            items = parts | {k: v for k, v in vars(value).items() if type(v) in (int, float)}
        case dict() | TensorDict():
            items = dict(value.items())
        case list() | tuple() | deque():
            items = dict(enumerate(value))
        case _:
            items = _attributes(value)
    return items


def _attributes(value: Any) -> dict[str, Any] | None:
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    if not slots and not hasattr(value, "__dict__"):
        return None
    names = [*getattr(value, "__dict__", ()), *slots]
    return {
        name: getattr(value, name) for name in names if hasattr(value, name) and name[:2] != "__"
    }


def _refill(container: Any, items: dict[Any, Any], now: dict[Any, Any]) -> None:
    """Let a container hold `items` again, which now holds `now`."""
    if now.keys() == items.keys() and all(now[key] is item for key, item in items.items()):
        return
    if isinstance(container, list | deque):
        container.clear()
        container.extend(items.values())
    elif isinstance(container, dict):
        container.clear()
        container.update(items)
    elif isinstance(container, TensorDict):
        container.update(items)
    elif not isinstance(container, tuple):
        # A simulation or a frozen dataclass may have a `__setattr__` of its own.
        for name in now.keys() - items.keys():
            object.__delattr__(container, name)
        for name, item in items.items():
            object.__setattr__(container, name, item)


def _copy(value: Any) -> Any:
    """Return what stays as it is while the value changes in place."""
    if isinstance(value, HOST_GENERATORS):
        return generator_state(value)
    return value.copy() if isinstance(value, np.ndarray | set) else value


def equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal, including tensors and arrays in them."""
    if one is other or type(one) is not type(other):
        return one is other
    if isinstance(one, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def generator_state(generator: Any) -> Any:
    """Return the state of a random generator of NumPy or Python."""
    if isinstance(generator, np.random.Generator):
        return dict(generator.bit_generator.state)
    return generator.getstate()


def set_generator_state(generator: Any, state: Any) -> None:
    """Restore what `generator_state` returned."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.setstate(state)
