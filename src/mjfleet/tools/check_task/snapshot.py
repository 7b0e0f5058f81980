"""Puts an environment back into an earlier state, so that two futures can be compared."""

from collections.abc import Iterator
from typing import Any

import torch

from mjfleet.env.environment import Env
from mjfleet.env.random_numbers import random_states, restore_random_states
from mjfleet.rl.pinned_state import PinnedState

COUNTERS = ("env._steps",)
CAUSES = ("terminated()", "sim.q", "sim.act", "rewards()", "observe()", "sim.mocap")
"""Beginnings of the names in an Outcome: in one step, the former may be why the latter differ."""


class Snapshot:
    """The state of an environment at the time when this is made."""

    def __init__(self, env: Env[Any]) -> None:
        self._env = env
        self._pinned = PinnedState({"env": env}, COUNTERS)
        self._tensors = [(tensor, tensor.clone()) for tensor in self._pinned.tensors()]
        self._fields = {name: field.clone() for name, field in env.sim.state().items()}
        self._generator = env.generator.get_state()
        self._host = random_states(str(env.device))

    def restore(self) -> None:
        """Put everything back."""
        self._pinned.put_back()
        for tensor, value in self._tensors:
            tensor.copy_(value)
        self._env.sim.restore(self._fields)
        self._env.generator.set_state(self._generator)
        restore_random_states(self._host, str(self._env.device))


Outcome = dict[str, torch.Tensor]
"""What some steps led to: `(steps, num_envs, size)` by name."""


def roll(env: Env[Any], actions: torch.Tensor) -> Outcome:
    """Take the steps of `actions` `(steps, num_envs, number of actions)`.

    The first row of what is returned is that of now: no step leads to it.
    """
    rows = [_row(env, torch.zeros(env.num_envs, dtype=torch.bool, device=env.device))]
    for action in actions:
        _, _, dones, _ = env.step(action.to(env.device))
        rows.append(_row(env, dones))
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _row(env: Env[Any], dones: torch.Tensor) -> Outcome:
    groups: Any = env.get_observations().items()
    row: Outcome = {f"observe()[{name!r}]": group for name, group in groups}
    row |= {
        f"rewards()[{name!r}]": term.unsqueeze(1)
        for name, term in zip(env.reward_names, env.terms, strict=True)
    }
    state = ("qpos", "qvel", "act", "mocap_pos", "mocap_quat")
    row |= {f"sim.{name}": getattr(env.sim, name).flatten(1).clone() for name in state}
    return row | {"terminated()": dones.unsqueeze(1)}


def differs(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return where two values differ by more than rounding, as a mask of their shape."""
    return ~one.double().isclose(other.double(), rtol=1e-5, atol=1e-7, equal_nan=True)


def first_difference(one: Outcome, other: Outcome, worlds: slice) -> str | None:
    """Return the name of what differs first in the chosen worlds, what explains others before."""
    found: list[tuple[int, int, str]] = []
    for name, values in one.items():
        different = differs(values[1:, worlds], other[name][1:, worlds]).any(dim=2).any(dim=1)
        if different.any():
            order = next(i for i, kind in enumerate(CAUSES) if name.startswith(kind))
            found.append((int(different.nonzero()[0]), order, name))
    return min(found)[2] if found else None


def own_tensors(env: Env[Any]) -> dict[str, torch.Tensor]:
    """Return the task's own tensors with a row per world, by name.

    Those of its parts, such as a Delay, are included, and those of the base class are not.
    """
    fields = [*vars(env.sim).values(), *env.sim._expanded.values()]
    of_sim = {f.untyped_storage().data_ptr() for f in fields if isinstance(f, torch.Tensor)}
    found: dict[str, torch.Tensor] = {}
    for name, value in vars(env).items():
        if name not in BASE_NAMES and not name.startswith("_"):
            found |= dict(_tensors(f"self.{name}", value))
    return {
        name: tensor
        for name, tensor in found.items()
        if rows_of(env, tensor) is not None and tensor.untyped_storage().data_ptr() not in of_sim
    }


def own_copies(env: Env[Any]) -> dict[str, torch.Tensor]:
    """Return copies of them."""
    return {name: tensor.clone() for name, tensor in own_tensors(env).items()}


def rows_of(env: Env[Any], tensor: torch.Tensor) -> int | None:
    """Return the dimension of a tensor, the first or the second, that numbers the worlds."""
    sizes = list(tensor.shape[:2])
    return sizes.index(env.num_envs) if env.num_envs in sizes else None


BASE_NAMES = {
    "cfg", "sim", "num_envs", "device", "env_ids", "generator", "action", "episode_length_buf",
    "terms", "measured", "recorder", "reward_names", "metric_names", "shard", "evaluated_levels",
}  # fmt: skip
"""Attributes that the base class makes."""


def _tensors(path: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, torch.nn.Module):
        yield from ((f"{path}.{name}", buffer) for name, buffer in value.named_buffers())
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(f"{path}[{key!r}]", item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _tensors(f"{path}[{index}]", item)
