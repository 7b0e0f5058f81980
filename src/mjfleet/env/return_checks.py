"""Checks what a task's methods return when it is built: torch would broadcast a wrong shape."""

import math
from collections.abc import Iterable
from typing import Any

import mujoco
import numpy as np
import torch

from mjfleet.errors import UserError

RETURN_COLUMNS = {
    "terminated": None, "truncated": None, "observe": "size", "rewards": None, "metrics": None,
    "debug_vis": 3,
}  # fmt: skip
"""Dimensions after the first of what a method returns. None: no further dimension. "size": any
non-zero size, or an image's (C, H, W). A number: exactly this size."""
MAY_BE_EMPTY = ("metrics", "debug_vis")
"""These may also return pairs."""


def observation_sizes(env: Any) -> dict[str, int | tuple[int, ...]]:
    """Return the size of each observation group; of an image (channels, height, width)."""
    groups = {name: tuple(group.shape) for name, group in env.get_observations().items()}
    return {name: shape[1] if len(shape) == 2 else shape[1:] for name, shape in groups.items()}


def observed_dtype(group: torch.Tensor) -> torch.dtype:
    """Return the type to which a group of `observe` is converted: float32, or bytes for images."""
    return torch.uint8 if group.dtype == torch.uint8 and group.ndim == 4 else torch.float32


def check_action_count(env: Any) -> int:
    """Return the size of an environment's actions.

    Raises:
        UserError: the model has no actuator, or the task's own `count_actions` returns no size.
    """
    count, kind = env.count_actions(), type(env).__name__
    if isinstance(count, (int, np.integer)) and count > 0:
        return int(count)
    if count == env.sim.model.nu == 0:
        raise UserError(f"{kind}: the model has no actuator to act with.")
    raise UserError(
        f"{kind}.count_actions() returns {count!r}; it must return a whole number above 0."
    )


def check_returns(env: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Call the methods of an environment once, check what they return, and undo what they wrote.

    Returns:
        The names of the reward terms, and of the metrics.

    Raises:
        UserError: a method returned a wrong type, shape or device.
    """
    restores = env.sim.keep(), env.keep()
    try:
        returned = {method: getattr(env, method)() for method in RETURN_COLUMNS}
        if isinstance(returned["rewards"], dict):
            returned["rewards"] = env.compute(returned["rewards"])
        ghost = env.ghost()
    except (RuntimeError, ValueError) as error:
        _note_motors_and_joints(error, env.sim.model)
        raise
    for restore in reversed(restores):
        restore()
    if ghost is not None:
        check_tensor(f"{type(env).__name__}.ghost()", ghost, env.sim.model.nq, env)
    for method, found in returned.items():
        where = f"{type(env).__name__}.{method}()"
        if method in ("terminated", "truncated"):
            check_tensor(where, found, None, env)
            if found.dtype != torch.bool:
                raise UserError(f"{where} is {found.dtype}, not torch.bool.")
            continue
        is_named = isinstance(found, dict) and all(isinstance(name, str) for name in found)
        if not is_named or not (found or method in MAY_BE_EMPTY):
            raise UserError(f"{where} must return a dictionary of names to tensors.")
        for key, value in found.items():
            is_pair = method in MAY_BE_EMPTY and isinstance(value, tuple) and len(value) == 2
            for part in value if is_pair else (value,):
                check_tensor(f"{where}[{key!r}]", part, RETURN_COLUMNS[method], env)
        if method == "observe" and not found.keys() >= {"actor", "critic"}:
            raise UserError(f"{where} has {', '.join(found)}; it must have actor and critic.")
    if unknown := env.reward_weights().keys() - returned["rewards"].keys():
        raise UserError(
            f"{type(env).__name__}.reward_weights() names {', '.join(sorted(unknown))}; rewards() "
            f"has {', '.join(returned['rewards'])}."
        )
    return tuple(returned["rewards"]), tuple(returned["metrics"])


def _note_motors_and_joints(error: Exception, model: mujoco.MjModel) -> None:
    """Note the names of motors and joints, if a term may have taken one number for the other."""
    motors = [model.actuator(i).name or str(i) for i in range(model.nactuator)]
    joints = [model.joint(i).name or str(i) for i in range(model.njnt)]
    if model.nu != model.nv:
        error.add_note(
            f"The model has motors ({', '.join(motors)}) with {model.nu} controls, and joints "
            f"({', '.join(joints)}) with {model.nv} speeds; sim.actuator_velocity has those of "
            "motors."
        )


def check_names(env: Any, rewards: Iterable[str], metrics: Iterable[str]) -> None:
    """Raise UserError unless terms and metrics of a step are those of `check_returns`, in order."""
    for method, found, names in (
        ("rewards", tuple(rewards), env.reward_names),
        ("metrics", tuple(metrics), env.metric_names),
    ):
        if found != names:
            now, first = (", ".join(terms) or "nothing" for terms in (found, names))
            raise UserError(
                f"{type(env).__name__}.{method}() returns {now}, and at first returned {first}: "
                "return the same names in the same order each time."
            )


def check_weights(env: Any) -> dict[str, float]:
    """Return the weights of an environment's reward terms, by name.

    Raises:
        UserError: they are no dictionary of finite numbers.
    """
    weights = env.reward_weights()
    try:
        are_numbers = all(map(math.isfinite, weights.values()))
    except (AttributeError, TypeError, ValueError):
        are_numbers = False
    if not are_numbers:
        raise UserError(
            f"{type(env).__name__}.reward_weights() returns {weights!r:.80}; it must return a "
            "dictionary of names to finite numbers."
        )
    return {str(name): float(weight) for name, weight in weights.items()}


def check_tensor(what: str, value: Any, columns: str | int | None, env: Any) -> None:
    """Raise UserError unless a value is a tensor of its shape on the device."""
    shape, sizes = tuple(getattr(value, "shape", ())), () if columns is None else (columns,)
    wanted = f"({', '.join(map(str, (env.num_envs, *sizes)))}{'' if sizes else ','})"
    if columns == 3:
        wanted += f" or ({env.num_envs}, arrows, 3)"
        sizes = shape[1:] if len(shape) == 3 and shape[1] and shape[2] == 3 else sizes
    if columns == "size":
        wanted += f" or ({env.num_envs}, channels, height, width)"
        sizes = shape[1:] if len(shape) in (2, 4) and all(shape[1:]) else sizes
    is_tensor = isinstance(value, torch.Tensor)
    if not is_tensor or shape != (env.num_envs, *sizes) or value.device.type != env.device.type:
        found = f"{shape} on {value.device}" if is_tensor else type(value).__name__
        raise UserError(f"{what} is {found}; it must be a tensor {wanted} on {env.device}.")
