"""Checks the values in a checkpoint, which may be anybody's, before anything is made of them.

Runs in a worker.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from mjfleet.env.episode_statistics import EpisodeStatistics

OWN = "mjfleet"
NETWORKS = ("actor_state_dict", "critic_state_dict", "rnd_state_dict")
OPTIMIZERS = ("optimizer_state_dict", "rnd_optimizer_state_dict")
MAX_DEPTH = 30  # Of containers inside each other.
MAX_ITEMS = 4_000_000
MAX_COUNT = 2**62
MAX_BITS = 256  # Of an integer: states of NumPy's generators have 128.
PLAIN = (str, bool, float, bytes, torch.dtype, torch.device, type(None))


class _Items:
    """Looks at everything in a checkpoint, and counts it: an object may be there many times."""

    def __init__(self, most_bytes: int) -> None:
        self._left, self._most_bytes = MAX_ITEMS, most_bytes

    def look(self, value: Any, depth: int = MAX_DEPTH) -> None:
        self._left -= 1
        if self._left < 0 or depth < 0:
            raise ValueError("it has too much inside each other")
        if isinstance(value, torch.Tensor):
            self._look_at_tensor(value)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                self.look(key, depth - 1)
                self.look(item, depth - 1)
        elif isinstance(value, (list, tuple, set)):
            for item in value:
                self.look(item, depth - 1)
        elif isinstance(value, int):
            if value.bit_length() > MAX_BITS:
                raise ValueError("it has a huge integer")
        elif not isinstance(value, PLAIN):
            raise ValueError(f"it has a {type(value).__name__}, which is no plain data")

    def _look_at_tensor(self, tensor: torch.Tensor) -> None:
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            raise ValueError(f"it has a {tensor.layout} tensor on {tensor.device}")
        size = tensor.numel() * tensor.element_size()
        if size > min(tensor.untyped_storage().nbytes(), self._most_bytes):
            raise ValueError(
                f"it has a tensor of shape {list(tensor.shape)}, more than the file has room for"
            )


def check_values(state: Mapping[str, Any], most_bytes: int) -> None:
    """Check types and ranges of what a checkpoint holds, whose file has `most_bytes`.

    Raises:
        ValueError: a value is not what training has written. The message names it.
    """
    _Items(most_bytes).look(state)
    _need(state, "iter", _is_count, "a number of iterations")
    for name in NETWORKS:
        if name in state:
            _need(state, name, _is_network, "the tensors of a network by their names")
    for name in OPTIMIZERS:
        if name in state:
            _need(state, name, _is_optimizer, "the state of an optimiser")
    if state.get(OWN) is None:
        return
    _need(state, OWN, lambda v: isinstance(v, dict), "a dictionary")
    own = state[OWN]
    _need(own, "task", lambda v: isinstance(v, str), "a task's name")
    _need(own, "optimizer", lambda v: isinstance(v, str), "an optimiser's name")
    _need(own, "total_steps", _is_count, "a number of steps")
    _need(own, "configured_learning_rate", _is_number, "a number")
    _need(own, "best_return", lambda v: v is None or _is_number(v), "a number or None")
    _need(own, "shape", _is_shape, "the sizes of the run")
    _need(own, "window", _is_window, "statistics of episodes")
    _need(own, "ranks", _is_ranks, "the states of ranks")


def check_optimizer(saved: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Check that an optimiser's saved state has the shapes of the parameters that it has now.

    Raises:
        ValueError: it has others.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for place, entries in saved["state"].items():
        if not isinstance(place, int) or not 0 <= place < len(parameters):
            raise ValueError(f"the optimiser's state has a parameter {place!r}")
        for name, value in entries.items():
            shape = getattr(value, "shape", ())
            if shape not in ((), (1,), parameters[place].shape):
                raise ValueError(
                    f"the optimiser's {name} of parameter {place} is {list(shape)}, and should be "
                    f"{list(parameters[place].shape)}"
                )


def check_fields(saved: Mapping[str, Any], now: Mapping[str, torch.Tensor]) -> None:
    """Raise ValueError unless all saved fields are tensors with the shapes that they have now."""
    for key, value in saved.items():
        if not isinstance(value, torch.Tensor) or key not in now or value.shape != now[key].shape:
            raise ValueError(f"field {key!r} is not what it is now")


def _need(entries: Any, name: str, holds: Callable[[Any], bool], what: str) -> None:
    if name not in entries or not holds(entries[name]):
        raise ValueError(f"its {name} is not {what}")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < MAX_COUNT


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not math.isnan(value) and abs(value) < MAX_COUNT


def _is_network(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(name, str) and isinstance(item, torch.Tensor) for name, item in value.items()
    )


def _is_optimizer(value: Any) -> bool:
    match value:
        case {"state": dict(state), "param_groups": [_, *_] as groups}:
            return all(isinstance(entries, dict) for entries in state.values()) and all(
                isinstance(group, dict) and _is_number(group.get("lr")) for group in groups
            )
    return False


def _is_shape(value: Any) -> bool:
    return isinstance(value, dict) and _is_count(value.get("worlds per worker"))


def _is_ranks(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) > 0
        and all(isinstance(one, dict) and isinstance(one.get("env"), dict) for one in value)
    )


def _is_window(value: Any) -> bool:
    numbers: list[Any] = []
    try:
        for sums in [EpisodeStatistics(**entry) for entry in value]:
            numbers += [sums.episodes, sums.returns, sums.lengths, sums.rewards, sums.steps]
            numbers += sums.terms.values()
            for dividend, divisor in sums.metrics.values():
                numbers += [dividend, divisor]
    except (AttributeError, TypeError, ValueError):
        return False
    return isinstance(value, list) and all(isinstance(n, (int, float)) for n in numbers)
