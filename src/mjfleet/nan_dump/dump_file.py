"""failures/nan_rank<r>.npz: a rollout of the worlds that went bad, written, read and replayed.

Needs NumPy and MuJoCo alone. Arrays have steps first, then worlds; k is a step of the rollout, T
the number of its steps:

    start/<field>[k]        state and inputs as the physics of step k started; [T]: after the resets
    end/<field>[k]          qpos, qvel, act as the physics of step k ended, before any reset
    observation/<group>[k]  what the policy saw before step k; [T]: what it would have seen next
    action[k]  term/<name>[k]  reward[k]  done[k]      reward as it is learned from
    worlds  num_envs  iteration  decimation  task  mujoco
    model                   the MjModel in MuJoCo's binary form, as bytes
"""

import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np

from mjfleet.errors import UserError
from mjfleet.utils.atomic_write import write_atomically

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

    arrays: Mapping[str, np.ndarray]  # By the names above, without `model` and `mujoco`.
    model: mujoco.MjModel

    @property
    def num_steps(self) -> int:
        """T, the number of steps of the rollout."""
        return len(self.arrays["action"])

    @property
    def worlds(self) -> list[int]:
        """The numbers of the recorded worlds, in the order of the arrays."""
        return self.arrays["worlds"].tolist()

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
        data = mujoco.MjData(self.model)
        for name, values in self.arrays.items():
            if name.startswith("start/"):
                value = values[step, self.worlds.index(world)]
                setattr(data, name.removeprefix("start/"), value)
        mujoco.mj_step(self.model, data, nstep=int(self.arrays["decimation"]))
        return data


def save(path: Path, model: mujoco.MjModel, arrays: Mapping[str, Any]) -> None:
    """Write a dump, whole or not at all, and create its folder if needed."""
    binary = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, binary)
    everything = {**arrays, "model": binary, "mujoco": mujoco.__version__}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: np.savez_compressed(file, **everything))


def load(path: Path | str) -> NanDump:
    """Read a dump.

    Raises:
        UserError: the file is not a dump, or its model is of another version of MuJoCo.
    """
    # MuJoCo would print warnings, and append them to a file in the current folder.
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        binary, version = arrays.pop("model").tobytes(), str(arrays.pop("mujoco"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except (ValueError, TypeError, KeyError, AttributeError, EOFError, zipfile.BadZipFile):
        raise UserError(
            f"{path} is not a NaN dump; a run's dumps are failures/nan_rank<r>.npz"
        ) from None
    try:
        model = mujoco.MjModel.from_binary_path("model.mjb", {"model.mjb": binary})
    except ValueError as error:
        raise UserError(
            f"{path} was written with MuJoCo {version}, and this is {mujoco.__version__}: {error}"
        ) from None
    # Without this flag MuJoCo would reset a world that goes bad.
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
    return NanDump(arrays, model)


def label(name: str) -> str:
    """Return an array's name as it is shown to users."""
    kind, _, rest = name.partition("/")
    labels = {"observation": f"observation group {rest!r}", "term": f"reward term {rest!r}"}
    return labels.get(kind, rest or kind)


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
