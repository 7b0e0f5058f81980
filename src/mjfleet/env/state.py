"""What an environment has become since it was built, as plain data for a checkpoint."""

import random
from collections import deque
from collections.abc import Mapping
from functools import singledispatch
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

_PLAIN = (bool, int, float, str, type(None))


class _NoStateError(Exception):
    """A value that is no state: a configuration, a model, a function."""


class EnvState:
    """Finds the attributes of an environment that change while it runs, and puts them back.

    State is every attribute that is a tensor, an array, a number, text, a random generator, a list,
    tuple, deque or dictionary of these, or an object with `state_dict` and `load_state_dict`, and
    that is not as it was when the environment was built: so constants that were worked out from
    the configuration come from the configuration of today.
    """

    def __init__(self, env: Any) -> None:
        """Remember how `env`, freshly built, is."""
        self._env = env
        self._built = self._all()

    def changed(self) -> dict[str, Any]:
        """The attributes that have changed, by name: tensors on the CPU, and plain data."""
        found = self._all().items()
        return {k: v for k, v in found if k not in self._built or not _equal(v, self._built[k])}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back all that `changed` found in an environment of the same shape."""
        for name, value in state.items():
            setattr(self._env, name, _put_back(value, getattr(self._env, name, None)))

    def restore_counters(self, state: Mapping[str, Any], num_envs: int) -> list[str]:
        """Put back only what does not belong to single worlds, such as a curriculum's counters.

        Args:
            state: what `changed` found.
            num_envs: the number of worlds there.

        Returns:
            The names of what was put back.
        """
        kept = []
        for name, value in state.items():
            now = getattr(self._env, name, None)
            fits = isinstance(value, _PLAIN) or (
                isinstance(value, torch.Tensor)
                and isinstance(now, torch.Tensor)
                and value.shape == now.shape
                and num_envs not in value.shape
            )
            if fits:
                setattr(self._env, name, _put_back(value, now))
                kept.append(name)
        return kept

    def _all(self) -> dict[str, Any]:
        """Every attribute that may be state; what is the simulation's own is not."""
        found: dict[str, Any] = {}
        sim = self._env.sim
        owned = {
            value.untyped_storage().data_ptr()
            for value in vars(sim).values()
            if isinstance(value, torch.Tensor) and value.numel()
        }
        for name, value in vars(self._env).items():
            if isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() in owned:
                continue
            try:
                found[name] = _take(value)
            except _NoStateError:
                continue
        return found


@singledispatch
def _take(value: Any) -> Any:
    """A copy of a value as plain data."""
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return _take(dict(value.state_dict()))
    raise _NoStateError(type(value).__name__)


@_take.register(bool | int | float | str | None)
def _take_plain(value: Any) -> Any:
    return value


@_take.register
def _take_tensor(value: torch.Tensor) -> torch.Tensor:
    return value.detach().to("cpu", copy=True)


@_take.register
def _take_array(value: np.ndarray) -> torch.Tensor:
    try:
        return torch.from_numpy(value.copy())
    except TypeError:
        raise _NoStateError(value.dtype) from None


@_take.register
def _take_scalar(value: np.generic) -> Any:
    return value.item()


@_take.register
def _take_generator(value: torch.Generator) -> torch.Tensor:
    return value.get_state()


@_take.register
def _take_numpy_generator(value: np.random.Generator) -> Any:
    return _take(dict(value.bit_generator.state))


@_take.register
def _take_python_generator(value: random.Random) -> Any:
    return value.getstate()


@_take.register(TensorDict | dict)
def _take_mapping(value: Any) -> dict[Any, Any]:
    return {key: _take(item) for key, item in value.items()}


@_take.register(list | deque)
def _take_list(value: Any) -> list[Any]:
    return [_take(item) for item in value]


@_take.register
def _take_tuple(value: tuple) -> tuple[Any, ...]:
    return tuple(_take(item) for item in value)


def _put_back(saved: Any, now: Any) -> Any:
    """What takes the place of `now`: what was saved, in the form and on the device of `now`."""
    if isinstance(now, (torch.Generator, np.random.Generator, random.Random)):
        _set_generator(now, saved)
        return now
    if isinstance(now, TensorDict):
        on_device = {key: item.to(now.device) for key, item in saved.items()}
        return TensorDict(on_device, now.batch_size, now.device)
    if isinstance(saved, torch.Tensor):
        if isinstance(now, np.ndarray):
            return saved.numpy().copy()
        return saved.to(now.device) if isinstance(now, torch.Tensor) else saved
    if isinstance(saved, (dict, list, tuple)):
        return _put_back_container(saved, now)
    return saved


def _put_back_container(saved: Any, now: Any) -> Any:
    if hasattr(now, "load_state_dict"):
        now.load_state_dict(saved)
        return now
    if isinstance(saved, dict):
        before = now if isinstance(now, dict) else {}
        return {key: _put_back(item, before.get(key)) for key, item in saved.items()}
    before = now if isinstance(now, (list, tuple, deque)) else ()
    items = [_put_back(item, old) for item, old in zip_longest(saved, before)][: len(saved)]
    return deque(items, now.maxlen) if isinstance(now, deque) else type(saved)(items)


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
