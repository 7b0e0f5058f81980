"""Converts an environment's changing attributes to plain data for a checkpoint, and back.

Runs in a worker.
"""

import copy
import random
from collections import deque
from collections.abc import Collection, Mapping
from contextlib import suppress
from enum import Enum
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

_PLAIN = (bool, int, float, str, type(None))
_GENERATORS = (torch.Generator, np.random.Generator, random.Random)
_OF_SIM = "<the simulation's own>"
"""Stands for a view of the simulation, which restores itself."""


class _NoStateError(Exception):
    """A value is not state: a configuration, a model, a function."""


class EnvState:
    """Finds the attributes of an environment that change while it runs, and restores them.

    State is every attribute that differs from its value when the environment was built, and that is
    a tensor, an array, a number, text, an enum's member, a random generator, a list, tuple, set,
    deque or dictionary of these, or an object with `state_dict` and `load_state_dict`. Constants
    that were computed from the configuration thus follow the current configuration.
    """

    def __init__(self, env: Any, since: "EnvState | None" = None) -> None:
        """Remember the attributes of `env`, which has just been built.

        `since`: an earlier one, which has tensors that were not written since then. They are not
        copied again.
        """
        self._env, self._since = env, since
        self._shared = since.unwritten() if since else frozenset()
        self._built = self._all()
        self._versions = self._tensors()

    def changed(self) -> dict[str, Any]:
        """Return the attributes that have changed, by name: tensors on the CPU, and plain data."""
        found = self._all().items()
        return {k: v for k, v in found if k not in self._built or not equal(v, self._built[k])}

    def counters(self) -> dict[str, Any]:
        """Return those of them that do not belong to single environments."""
        env = self._env
        return {
            name: value
            for name, value in self.changed().items()
            if _is_global(value, getattr(env, name), env.num_envs)
        }

    def restore(self, state: Mapping[str, Any]) -> list[str]:
        """Restore what `changed` returned for as many environments.

        Tensors, lists and dictionaries are written in place, since other objects may hold them or
        views of them.

        Returns:
            The names of tensors whose shape is different now. They keep their values.
        """
        attributes = vars(self._env)
        pairs = ((name, saved, attributes.get(name)) for name, saved in state.items())
        tensors = [pair for pair in pairs if all(isinstance(x, torch.Tensor) for x in pair[1:])]
        other_shape = [name for name, saved, now in tensors if saved.shape != now.shape]
        for name, saved in state.items():
            if name not in other_shape:
                self._put_back(name, saved)
        for name, saved, _ in tensors:
            # Two attributes that shared a tensor when they were built may need one each.
            if name not in other_shape and not torch.equal(attributes[name].cpu(), saved):
                attributes[name] = saved.to(attributes[name].device, copy=True)
        return other_shape

    def restore_built(self) -> None:
        """Restore all attributes as they were when the environment was built."""
        state = self._built
        if self._since:
            written = self._shared - self._since.unwritten()
            state = state | {name: self._since._built[name] for name in written}
        self.restore(state)
        self._versions = self._tensors()

    def unwritten(self) -> frozenset[str]:
        """Return the names of tensors that are as they were when this was made, or restored."""
        attributes = vars(self._env)
        return frozenset(
            name
            for name, (tensor, version) in self._versions.items()
            if name in self._built and attributes.get(name) is tensor and tensor._version == version
        )

    def restore_counters(self, state: Mapping[str, Any], num_envs: int) -> None:
        """Restore only what does not belong to single environments, such as a curriculum's level.

        Args:
            state: what `changed` or `counters` returned.
            num_envs: the number of environments there.
        """
        for name, value in state.items():
            if _is_global(value, getattr(self._env, name, None), num_envs):
                self._put_back(name, value)

    def check(self, state: Mapping[str, Any]) -> None:
        """Check attributes that `changed` may have returned, or that somebody else has made up.

        Raises:
            ValueError: one is no state, or of another kind than it is now.
        """
        now, attributes = self._all(), vars(self._env)
        for name, saved in state.items():
            inherited = None if name in attributes else getattr(type(self._env), name, None)
            is_code = callable(inherited) or isinstance(inherited, property)
            if is_code or name.startswith("__") or (name in attributes and name not in now):
                raise ValueError(f"the environment's {name} is no state")
            then, kind = _kind(saved), _kind(now.get(name))
            if None not in (then, kind) and then != kind:
                raise ValueError(f"the environment's {name} is {kind}, and was {then}")

    def _all(self) -> dict[str, Any]:
        """Return every attribute that may be state."""
        found: dict[str, Any] = {}
        fields = vars(self._env.sim).values()
        owned = {_memory(field) for field in fields if isinstance(field, torch.Tensor)} - {0}
        for name, value in vars(self._env).items():
            with suppress(_NoStateError):
                if name != "sim" and name not in self._shared:
                    found[name] = _take(value, owned)
        return {k: v for k, v in found.items() if not (isinstance(v, str) and v == _OF_SIM)}

    def _tensors(self) -> dict[str, tuple[torch.Tensor, int]]:
        """Return the attributes that are tensors, each with how often torch has written it."""
        named = vars(self._env).items()
        found = {name: value for name, value in named if isinstance(value, torch.Tensor)}
        return {k: (v, v._version) for k, v in found.items() if not v.is_inference()}

    def _put_back(self, name: str, saved: Any) -> None:
        now = getattr(self._env, name, None)
        setattr(self._env, name, _put_back(saved, now, self._env.device))


def _kind(value: Any) -> str | None:
    """Return what a saved value is, roughly; None: it may become anything."""
    match value:
        case None:
            return None
        case torch.Tensor() | bool() | int() | float():
            return "numbers"
        case str():
            return "text"
        case dict():
            return "a mapping"
    return "a list"


def _memory(tensor: torch.Tensor) -> int:
    """Return the address of the memory that a tensor views, or 0 if it is empty."""
    return tensor.untyped_storage().data_ptr() if tensor.numel() else 0


def generator_state(generator: Any) -> Any:
    """Return the state of a random generator: a tensor, or plain data with arrays."""
    match generator:
        case torch.Generator():
            return generator.get_state()
        case np.random.Generator():
            return dict(generator.bit_generator.state)
    return generator.getstate()


def set_generator_state(generator: Any, state: Any) -> None:
    """Restore a state, which may have become tensors and lists on its way through a file."""
    match generator:
        case torch.Generator():
            generator.set_state(state)
        case np.random.Generator():
            generator.bit_generator.state = _arrays(state)
        case _:
            version, internal, gauss = state
            generator.setstate((version, tuple(internal), gauss))


def _arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _arrays(item) for key, item in value.items()}
    return value.numpy() if isinstance(value, torch.Tensor) else value


def _take(value: Any, owned: Collection[int]) -> Any:
    """Return a copy of a value as plain data. `owned`: addresses of the simulation's memory."""
    taken = value
    match value:
        case torch.Tensor():
            taken = _OF_SIM if _memory(value) in owned else value.detach().to("cpu", copy=True)
        case np.ndarray():
            try:
                taken = torch.from_numpy(value.copy())
            except TypeError:
                raise _NoStateError(value.dtype) from None
        case np.generic():
            taken = value.item()
        case Enum():
            taken = _take(value.value, owned)
        case torch.Generator() | np.random.Generator() | random.Random():
            taken = _take(generator_state(value), owned)
        case TensorDict() | dict() if all(type(key) in _PLAIN for key in list(value.keys())):
            taken = {key: _take(item, owned) for key, item in value.items()}
        case list() | deque() | set() | frozenset():
            taken = [_take(item, owned) for item in value]
        case tuple():
            taken = tuple(_take(item, owned) for item in value)
        case _ if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            taken = _take(dict(value.state_dict()), owned)
        case _ if type(value) not in _PLAIN:
            raise _NoStateError(type(value).__name__)
    return taken


def _put_back(saved: Any, now: Any, device: torch.device) -> Any:
    """Return the value that replaces `now`: itself if it can be written in place.

    Args:
        saved: a copy that `_take` made.
        now: the current value, or None.
        device: the device of tensors that replace None.
    """
    if isinstance(saved, str) and saved == _OF_SIM:
        return now  # The simulation restores it.
    result = now
    match saved, now:
        case _, torch.Generator() | np.random.Generator() | random.Random():
            set_generator_state(now, saved)
        case _, Enum():
            result = type(now)(saved)
        case torch.Tensor(), _:
            result = _put_back_tensor(saved, now, device)
        case dict(), TensorDict():
            items = {key: item.to(now.device, copy=True) for key, item in saved.items()}
            result = TensorDict(items, now.batch_size, now.device)
        case dict(), _ if hasattr(now, "load_state_dict"):
            now.load_state_dict(copy.deepcopy(saved))
        case dict(), _:
            result = now if isinstance(now, dict) else {}
            items = {key: _put_back(item, result.get(key), device) for key, item in saved.items()}
            result.clear()
            result.update(items)
        case list() | tuple(), _:
            items = [_put_back(item, old, device) for item, old in _pairs(saved, now)]
            result = _put_back_items(items, saved, now)
        case _:
            result = saved
    return result


def _put_back_tensor(saved: torch.Tensor, now: Any, device: torch.device) -> Any:
    if isinstance(now, np.ndarray):
        if now.shape != tuple(saved.shape) or not now.flags.writeable:
            return saved.numpy().copy()
        now[...] = saved.numpy()
        return now
    if not isinstance(now, torch.Tensor):
        return saved.to(device, copy=True)
    if now.shape == saved.shape and now.dtype == saved.dtype:
        with torch.no_grad(), suppress(RuntimeError):  # An expanded tensor cannot be written.
            return now.copy_(saved)
    return saved.to(now.device, copy=True)


def _put_back_items(items: list[Any], saved: Any, now: Any) -> Any:
    if isinstance(now, (list, deque)):
        now.clear()
        now.extend(items)
        return now
    if isinstance(now, tuple) and hasattr(now, "_fields"):
        return type(now)(*items)
    return type(now if isinstance(now, (set, frozenset)) else saved)(items)


def _pairs(saved: Any, now: Any) -> list[tuple[Any, Any]]:
    """Return each saved item of a sequence with the current item in its place, or None."""
    before = now if isinstance(now, (list, tuple, deque)) else ()
    return list(zip_longest(saved, before))[: len(saved)]


def _is_global(saved: Any, now: Any, num_envs: int) -> bool:
    """Return whether a value belongs to no single environment, and fits the current value."""
    if isinstance(now, _GENERATORS):
        return False
    if isinstance(saved, torch.Tensor):
        fits = isinstance(now, (torch.Tensor, np.ndarray)) and now.shape == saved.shape
        return fits and num_envs not in saved.shape
    if isinstance(saved, dict):
        own = now if isinstance(now, dict) else {}
        if hasattr(now, "load_state_dict") and not isinstance(now, TensorDict):
            own = saved
        return all(_is_global(item, own.get(key), num_envs) for key, item in saved.items())
    if isinstance(saved, (list, tuple)):
        return all(_is_global(item, old, num_envs) for item, old in _pairs(saved, now))
    return True


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
