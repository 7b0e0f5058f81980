"""failures/nan_rank<r>.npz: a rollout of the worlds that went bad. Needs NumPy and MuJoCo alone.

Arrays have steps first, then worlds; k is a step of the rollout, T the number of its steps:

    start/<field>[k]        state and inputs as the physics of step k started; [T]: after the resets
    end/<field>[k]          qpos, qvel, act as the physics of step k ended, before any reset
    observation/<group>[k]  what the policy saw before step k; [T]: what it would have seen next
    action[k]  term/<name>[k]  reward[k]  done[k]      reward as it is learned from
    worlds  num_envs  iteration  decimation  task  mujoco
    model                   the MjModel in MuJoCo's binary form, as bytes
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import mujoco
import numpy as np

from mjfleet.utils.atomic_write import write_atomically

_ORDER = (
    "start/time", "start/qpos", "start/qvel", "start/act", "observation/", "action", "start/",
    "end/", "term/", "reward",
)  # fmt: skip
"""What comes to be before what within a step: a later quantity is computed from earlier ones."""


class Bad(NamedTuple):
    """The first number of a world that was not finite."""

    step: int
    place: int
    """Where in a step the quantity comes to be; smaller is earlier."""
    name: str
    component: int


def label(name: str) -> str:
    """A quantity's name for people."""
    kind, _, rest = name.partition("/")
    return {
        "observation": f"observation group {rest!r}",
        "term": f"reward term {rest!r}",
    }.get(kind, rest or kind)


def watched(names: Iterable[str]) -> list[str]:
    """The arrays of a dump that have to be finite, in the order in which they come to be."""
    places = {
        name: [name.startswith(start) for start in _ORDER].index(True)
        for name in names
        if name.startswith(_ORDER)
    }
    return sorted(places, key=places.__getitem__)


def first_bad(arrays: Mapping[str, np.ndarray], world: int) -> Bad:
    """The first number that is not finite of a world, given by its place in the arrays."""
    found = []
    for place, name in enumerate(watched(arrays)):
        values = arrays[name][:, world].reshape(len(arrays[name]), -1)
        steps, components = np.nonzero(~np.isfinite(values))
        if steps.size:
            found.append(Bad(int(steps[0]), place, name, int(components[0])))
    return min(found)


def save(path: Path, model: mujoco.MjModel, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a dump, whole or not at all, and its folder where that is missing.

    Raises:
        OSError: it cannot be written.
    """
    binary = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, binary)
    everything = {**arrays, "model": binary, "mujoco": np.array(mujoco.__version__)}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: np.savez_compressed(file, **everything))
