"""failures/nan_rank<r>.npz: a rollout of the worlds that went bad, written, read and replayed.

Needs NumPy and MuJoCo alone. Arrays have steps first, then worlds; k is a step of the rollout, T
the number of its steps:

    start/<field>[k]        state and inputs as the physics of step k started; [T]: after the resets
    end/<field>[k]          qpos, qvel, act as the physics of step k ended, before any reset
    observation/<group>[k]  what the policy saw before step k; [T]: what it would have seen next
    action[k]  term/<name>[k]  reward[k]  done[k]      reward as it is learned from
    worlds  num_envs  iteration  decimation
"""

import zipfile
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np

from mjfleet.errors import UserError
from mjfleet.utils.atomic_write import write_atomically
from mjfleet.utils.console import in_a_line
from mjfleet.utils.safe_read import open_regular

MAX_BYTES = 2**28
_ORDER = (
    "start/time", "start/qpos", "start/qvel", "start/act", "observation/", "action", "start/",
    "end/", "term/", "reward",
)  # fmt: skip
"""The order in which quantities are computed within a step, by the beginnings of their names."""


class BadNumber(NamedTuple):
    """The first number of a world that is not finite; of two, the smaller came first."""

    step: int
    place: int  # Of the quantity in the order of computation within a step.
    name: str
    component: int


@dataclass(frozen=True)
class NanDump:
    """A dump and the model it was recorded with."""

    arrays: Mapping[str, np.ndarray]  # By the names above.
    model: mujoco.MjModel
    task: str

    @property
    def num_steps(self) -> int:
        """T, the number of steps of the rollout."""
        return len(self.arrays["action"])

    @property
    def worlds(self) -> list[int]:
        """The numbers of the recorded worlds, in the order of the arrays."""
        return self.arrays["worlds"].tolist()

    def misfit(self) -> str:
        """Return the name of an array that has not the size of its field in MuJoCo, or ''."""
        data = mujoco.MjData(self.model)
        for name, values in self.arrays.items():
            kind, _, field = name.partition("/")
            is_state = kind in ("start", "end")
            if is_state and np.shape(getattr(data, field, ())) != values.shape[2:]:
                return name
        return ""

    def replay(self, world: int, step: int) -> mujoco.MjData:
        """Return the state after the physics of a step, simulated again by MuJoCo's own engine.

        Raises:
            UserError: the dump has no such world or step.
        """
        if world not in self.worlds or not 0 <= step < self.num_steps:
            raise UserError(
                f"world {world}, step {step}: the dump holds worlds "
                f"{', '.join(map(str, self.worlds))} and steps 0 to {self.num_steps - 1}."
            )
        # MuJoCo would print warnings, and append them to a file in the current folder; it would
        # also reset a world that goes bad.
        mujoco.set_mju_user_warning(lambda message: None)
        self.model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
        data = mujoco.MjData(self.model)
        for name, values in self.arrays.items():
            if name.startswith("start/"):
                setattr(data, name.removeprefix("start/"), values[step, self.worlds.index(world)])
        mujoco.mj_step(self.model, data, nstep=int(self.arrays["decimation"]))
        return data


def save(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write a dump, whole or not at all, and create its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: np.savez_compressed(file, **arrays))


def read(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a dump by name; UserError if the file is none."""
    try:
        with (
            open_regular(path, MAX_BYTES, may_link=True) as opened,
            np.load(opened, allow_pickle=False) as file,
        ):
            arrays = dict(file)
        steps, worlds = arrays["done"].shape
        sizes = {(steps, worlds), (steps + 1, worlds)}
        if any(arrays[name].shape[:2] not in sizes for name in checked_arrays(arrays)):
            raise ValueError("its arrays have different numbers of steps or worlds")
        for index in range(worlds):
            first_bad_number(arrays, index)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except (EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(
            f"{path} is not a NaN dump, which a run writes as failures/nan_rank<r>.npz: "
            f"{in_a_line(error)}"
        ) from None
    return arrays


def checked_arrays(names: Collection[str]) -> list[str]:
    """Return the arrays of a dump that must be finite, in the order of their computation."""
    return list(dict.fromkeys(n for start in _ORDER for n in names if n.startswith(start)))


def first_bad_number(arrays: Mapping[str, np.ndarray], index: int) -> BadNumber:
    """Return the first number of a world that is not finite; `index` is its place in the arrays."""
    found = []
    for place, name in enumerate(checked_arrays(arrays)):
        values = arrays[name][:, index].reshape(len(arrays[name]), -1)
        steps, components = np.nonzero(~np.isfinite(values))
        if steps.size:
            found.append(BadNumber(int(steps[0]), place, name, int(components[0])))
    return min(found)
