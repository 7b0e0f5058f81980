"""Checks what the methods of a task return: when an environment is built, and for changes later.

Otherwise torch would broadcast a wrong shape silently, or fail far from its cause.
"""

from collections.abc import Mapping
from typing import Any

import torch

from mjfleet.env.random_numbers import own_random_numbers
from mjfleet.errors import UserError

COLUMNS = {"observe": "size", "rewards": None, "terminated": None, "metrics": None, "debug_vis": 3}
"""Second dimension of what a method returns. "size": any but 0, or an image's three; None: there is
none."""


class ReturnedShapes:
    """The names and shapes that methods returned first, which later calls must return too."""

    def __init__(self) -> None:
        self._first: dict[str, list[tuple[str, torch.Size]]] = {}

    def check(self, method: str, returned: Mapping[str, torch.Tensor]) -> None:
        """Raise ValueError if a method now returns something else."""
        now = [(name, value.shape) for name, value in returned.items()]
        before = self._first.setdefault(method, now)
        if now != before:
            then, here = ({name: tuple(shape) for name, shape in each} for each in (before, now))
            raise ValueError(f"{method}() now returns {here}; at first it returned {then}")


def observation_sizes(env: Any) -> dict[str, int | tuple[int, ...]]:
    """Return the size of each observation group; of an image (channels, height, width)."""
    groups = env.get_observations().items()
    return {k: v.shape[1] if v.ndim == 2 else tuple(v.shape[1:]) for k, v in groups}


def check_returns(env: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Call the methods of an environment once, check what they return, and undo what they wrote.

    Returns:
        The names of the reward terms, and of the metrics.

    Raises:
        UserError: a method returned a wrong type, shape or device.
    """
    env_name, num_envs, device = type(env).__name__, env.num_envs, env.device
    returned = _call(env)
    terminated = returned.pop("terminated")
    tensors: list[tuple[str, Any, str | int | None]] = []
    for method, found in returned.items():
        if not isinstance(found, dict) or not (found or method in ("metrics", "debug_vis")):
            raise UserError(f"{env_name}.{method}() must return a dictionary of names to tensors.")
        for key, value in found.items():
            parts = value if isinstance(value, tuple) else (value,)
            tensors += [(f"{method}()[{key!r}]", part, COLUMNS[method]) for part in parts]
    groups = list(returned["observe"])
    for key in ("actor", "critic"):
        if key not in groups:
            raise UserError(f"{env_name}.observe() has no group {key!r}; it has {groups}.")
    for what, value, columns in (*tensors, ("terminated()", terminated, None)):
        wanted = f"({num_envs},)" if columns is None else f"({num_envs}, {columns})"
        if columns == "size":
            wanted += f" or ({num_envs}, channels, height, width)"
        if not isinstance(value, torch.Tensor):
            raise UserError(f"{env_name}.{what} is {type(value).__name__}, not a tensor {wanted}.")
        shape = tuple(value.shape)
        sizes = (columns,)
        if columns == "size" and len(shape) in (2, 4) and all(shape[1:]):
            sizes = shape[1:]
        if shape != ((num_envs,) if columns is None else (num_envs, *sizes)):
            raise UserError(f"{env_name}.{what} has shape {shape}, not {wanted}.")
        if value.device.type != device.type:
            raise UserError(f"{env_name}.{what} is on {value.device}, not on {device}.")
    if terminated.dtype != torch.bool:
        raise UserError(f"{env_name}.terminated() is {terminated.dtype}, not torch.bool.")
    return tuple(returned["rewards"]), tuple(returned["metrics"])


def _call(env: Any) -> dict[str, Any]:
    """Return what the methods return, and leave environment and random generators as they were."""
    fields = {name: field.clone() for name, field in env.sim.state().items()}
    with env.unchanged(), own_random_numbers(0, str(env.device)):
        returned = {method: getattr(env, method)() for method in COLUMNS}
    env.sim.restore(fields)
    return returned
