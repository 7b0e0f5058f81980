"""What an environment has become since it was built, as plain data for a checkpoint."""

import copy
import random
from collections import deque
from collections.abc import Collection, Mapping
from contextlib import suppress
from enum import Enum
from functools import singledispatch
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

_PLAIN = (bool, int, float, str, type(None))
_OF_SIM = "<the simulation's own>"
"""Stands for a view of the simulation, which restores itself."""


class _NoStateError(Exception):
    """A value that is no state: a configuration, a model, a function."""


class EnvState:
    """Finds the attributes of an environment that change while it runs, and puts them back.

    State is every attribute that is a tensor, an array, a number, text, an enum's member, a random
    generator, a list, tuple, set, deque or dictionary of these, or an object with `state_dict` and
    `load_state_dict`, and that is not as it was when the environment was built: so constants that
    were worked out from the configuration come from the configuration of today.
    """

    def __init__(self, env: Any) -> None:
        """Remember how `env`, freshly built, is."""
        self._env = env
        self._built = self._all()

    def changed(self) -> dict[str, Any]:
        """The attributes that have changed, by name: tensors on the CPU, and plain data."""
        found = self._all().items()
        return {k: v for k, v in found if k not in self._built or not _equal(v, self._built[k])}

    def counters(self) -> dict[str, Any]:
        """Those of them that do not belong to single worlds, see restore_counters."""
        env = self._env
        return {
            name: value
            for name, value in self.changed().items()
            if _is_global(value, getattr(env, name), env.num_envs)
        }

    def restore(self, state: Mapping[str, Any]) -> list[str]:
        """Put back all that `changed` found in an environment of the same worlds.

        Tensors, lists and dictionaries are written in place: others may hold them, or views.

        Returns:
            The names of tensors that have another shape now, and stay as they were built.
        """
        other_shape = [n for n, value in state.items() if self._has_another_shape(n, value)]
        rest = {name: value for name, value in state.items() if name not in other_shape}
        for name, value in rest.items():
            setattr(self._env, name, self._put_back(value, getattr(self._env, name, None)))
        for name, value in rest.items():
            now = getattr(self._env, name)
            tensors = isinstance(now, torch.Tensor) and isinstance(value, torch.Tensor)
            # Two that were one when they were built, and are not any more, need a tensor each.
            if tensors and not torch.equal(now.cpu(), value):
                setattr(self._env, name, value.to(now.device))
        return other_shape

    def restore_built(self) -> None:
        """Put back all as it was when the environment was built."""
        self.restore(copy.deepcopy(self._built))  # Some of it may be taken as it is.

    def restore_counters(self, state: Mapping[str, Any], num_envs: int) -> None:
        """Put back only what does not belong to single worlds, such as a curriculum's counters.

        Args:
            state: what `changed` found.
            num_envs: the number of worlds there.
        """
        for name, value in state.items():
            now = getattr(self._env, name, None)
            if _is_global(value, now, num_envs):
                setattr(self._env, name, self._put_back(value, now))

    def _all(self) -> dict[str, Any]:
        """Every attribute that may be state."""
        found: dict[str, Any] = {}
        fields = vars(self._env.sim).values()
        owned = {_memory(field) for field in fields if isinstance(field, torch.Tensor)} - {0}
        for name, value in vars(self._env).items():
            with suppress(_NoStateError):
                found[name] = _take(value, owned)
        return {k: v for k, v in found.items() if not (isinstance(v, str) and v == _OF_SIM)}

    def _has_another_shape(self, name: str, saved: Any) -> bool:
        now = getattr(self._env, name, None)
        if isinstance(saved, torch.Tensor) and isinstance(now, torch.Tensor):
            return saved.shape != now.shape
        return False

    def _put_back(self, saved: Any, now: Any) -> Any:
        return _put_back(saved, now, self._env.device)


def _memory(tensor: torch.Tensor) -> int:
    """Where the memory begins that a tensor is a view of; 0 where there is none."""
    return tensor.untyped_storage().data_ptr() if tensor.numel() else 0


@singledispatch
def _take(value: Any, owned: Collection[int]) -> Any:
    """A copy of a value as plain data; `owned`: memory of the simulation."""
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return _take(dict(value.state_dict()), owned)
    raise _NoStateError(type(value).__name__)


@_take.register(bool | int | float | str | None)
def _take_plain(value: Any, owned: Collection[int]) -> Any:
    if isinstance(value, Enum):
        return _take(value.value, owned)
    if isinstance(value, np.generic):
        return value.item()
    if type(value) not in _PLAIN:
        raise _NoStateError(type(value).__name__)
    return value


@_take.register
def _take_enum(value: Enum, owned: Collection[int]) -> Any:
    return _take(value.value, owned)


@_take.register
def _take_tensor(value: torch.Tensor, owned: Collection[int]) -> Any:
    if _memory(value) in owned:
        return _OF_SIM
    return value.detach().to("cpu", copy=True)


@_take.register
def _take_array(value: np.ndarray, owned: Collection[int]) -> torch.Tensor:
    try:
        return torch.from_numpy(value.copy())
    except TypeError:
        raise _NoStateError(value.dtype) from None


@_take.register
def _take_scalar(value: np.generic, owned: Collection[int]) -> Any:
    return value.item()


@_take.register
def _take_generator(value: torch.Generator, owned: Collection[int]) -> torch.Tensor:
    return value.get_state()


@_take.register
def _take_numpy_generator(value: np.random.Generator, owned: Collection[int]) -> Any:
    return _take(dict(value.bit_generator.state), owned)


@_take.register
def _take_python_generator(value: random.Random, owned: Collection[int]) -> Any:
    return value.getstate()


@_take.register(TensorDict | dict)
def _take_mapping(value: Any, owned: Collection[int]) -> dict[Any, Any]:
    if not all(type(key) in _PLAIN for key in value.keys()):  # noqa: SIM118  # Of a TensorDict too.
        raise _NoStateError("a key that is no plain data")
    return {key: _take(item, owned) for key, item in value.items()}


@_take.register(list | deque | set | frozenset)
def _take_list(value: Any, owned: Collection[int]) -> list[Any]:
    return [_take(item, owned) for item in value]


@_take.register
def _take_tuple(value: tuple, owned: Collection[int]) -> tuple[Any, ...]:
    return tuple(_take(item, owned) for item in value)


def _put_back(saved: Any, now: Any, device: torch.device) -> Any:
    """What takes the place of `now`: itself where it can be written in place.

    Args:
        saved: a copy that `_take` made.
        now: what is there; None: nothing.
        device: for tensors in the place of nothing.
    """
    if isinstance(saved, str) and saved == _OF_SIM:
        return now
    if isinstance(now, (torch.Generator, np.random.Generator, random.Random)):
        _set_generator(now, saved)
        return now
    if isinstance(now, Enum):
        return type(now)(saved)
    if isinstance(saved, torch.Tensor):
        return _put_back_tensor(saved, now, device)
    if isinstance(saved, (dict, list, tuple)):
        return _put_back_container(saved, now, device)
    return saved


def _put_back_tensor(saved: torch.Tensor, now: Any, device: torch.device) -> Any:
    if isinstance(now, np.ndarray):
        if now.shape != tuple(saved.shape) or not now.flags.writeable:
            return saved.numpy().copy()
        now[...] = saved.numpy()
        return now
    if not isinstance(now, torch.Tensor):
        return saved.to(device)
    if now.shape == saved.shape and now.dtype == saved.dtype:
        with torch.no_grad(), suppress(RuntimeError):  # Expanded, it cannot be written.
            now.copy_(saved)
            return now
    return saved.to(now.device)


def _put_back_container(saved: Any, now: Any, device: torch.device) -> Any:
    if isinstance(saved, dict):
        return _put_back_mapping(saved, now, device)
    before = now if isinstance(now, (list, tuple, deque)) else ()
    pairs = list(zip_longest(saved, before))[: len(saved)]
    items = [_put_back(item, old, device) for item, old in pairs]
    if isinstance(now, (list, deque)):
        now.clear()
        now.extend(items)
        return now
    if isinstance(now, (set, frozenset)):
        return type(now)(items)
    if isinstance(now, tuple) and hasattr(now, "_fields"):
        return type(now)(*items)
    return type(saved)(items)


def _put_back_mapping(saved: dict[Any, Any], now: Any, device: torch.device) -> Any:
    if isinstance(now, TensorDict):
        on_device = {key: item.to(now.device) for key, item in saved.items()}
        return TensorDict(on_device, now.batch_size, now.device)
    if hasattr(now, "load_state_dict"):
        now.load_state_dict(saved)
        return now
    target = now if isinstance(now, dict) else {}
    items = {key: _put_back(item, target.get(key), device) for key, item in saved.items()}
    target.clear()
    target.update(items)
    return target


def _set_generator(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = _arrays(state)
    else:
        version, internal, gauss = state
        generator.setstate((version, tuple(internal), gauss))


def _arrays(value: Any) -> Any:
    """The state of a NumPy generator, whose arrays were saved as tensors."""
    if isinstance(value, dict):
        return {key: _arrays(item) for key, item in value.items()}
    return value.numpy() if isinstance(value, torch.Tensor) else value


def _is_global(saved: Any, now: Any, num_envs: int) -> bool:
    """Whether a value has nothing that belongs to a single world, and fits what is there."""
    if isinstance(now, (torch.Generator, np.random.Generator, random.Random)):
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
        own = now if isinstance(now, (list, tuple, deque)) else ()
        return all(
            _is_global(item, old, num_envs)
            for item, old in list(zip_longest(saved, own))[: len(saved)]
        )
    return True


def _equal(one: Any, other: Any) -> bool:
    """Whether two copies are the same, down to their tensors."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    return one == other
