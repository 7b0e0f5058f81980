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

import hashlib
import zipfile
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np

from mjfleet.errors import UserError
from mjfleet.runs.foreign_files import is_own, remember
from mjfleet.utils.atomic_write import write_atomically
from mjfleet.utils.console import in_a_line
from mjfleet.utils.safe_read import open_regular

KIND = "NaN dump"
MAX_BYTES = 2**28  # Of all arrays.
MAX_NUMBER = 10**9  # Of iterations, environments and physics steps.
STATE = (
    "time", "qpos", "qvel", "act", "ctrl", "qfrc_applied", "xfrc_applied", "mocap_pos",
    "mocap_quat",
)  # fmt: skip
UNREADABLE = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, RuntimeError, TypeError,
    ValueError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What NumPy raises for what is no dump."""
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
                try:
                    setattr(data, name.removeprefix("start/"), value)
                except (TypeError, ValueError):
                    raise UserError(f"{name} of the dump does not fit its model") from None
        mujoco.mj_step(self.model, data, nstep=int(self.arrays["decimation"]))
        return data


def save(path: Path, model: mujoco.MjModel, arrays: Mapping[str, Any]) -> None:
    """Write a dump, whole or not at all, and create its folder if needed."""
    binary = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, binary)
    remember(KIND, _hash(binary.tobytes()))
    everything = {**arrays, "model": binary, "mujoco": mujoco.__version__}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: np.savez_compressed(file, **everything))


def load(path: Path | str, trust: bool = False) -> NanDump:
    """Read a dump: one of this user's, or any to be `trust`ed.

    MuJoCo does not check a model in binary form: a damaged one crashes it, or may run its code.

    Raises:
        UserError: the file is not a dump, its model is of another version of MuJoCo, or it is
            somebody else's.
    """
    # MuJoCo would print warnings, and append them to a file in the current folder.
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        with open_regular(Path(path), MAX_BYTES, may_link=True) as opened:
            with zipfile.ZipFile(opened) as archive:
                if sum(record.file_size for record in archive.infolist()) > MAX_BYTES:
                    raise ValueError(f"it would fill more than {MAX_BYTES:,} bytes")
            opened.seek(0)
            with np.load(opened, allow_pickle=False) as file:
                arrays = dict(file)
        binary, version = arrays.pop("model").tobytes(), str(arrays.pop("mujoco"))
        arrays.pop("signature", None)  # Of an earlier version.
        _check(arrays)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except UNREADABLE as error:
        raise UserError(
            f"{path} is not a NaN dump, which a run writes as failures/nan_rank<r>.npz: "
            f"{in_a_line(error)}"
        ) from None
    if not trust and not is_own(KIND, _hash(binary)):
        raise UserError(
            f"{path} is not from a run of this user, and MuJoCo reads its model without checking "
            "it: --trust accepts that."
        )
    try:
        model = mujoco.MjModel.from_binary_path("model.mjb", {"model.mjb": binary})
    except ValueError as error:
        raise UserError(
            f"{path} was written with MuJoCo {version}, and this is {mujoco.__version__}: {error}"
        ) from None
    # Without this flag MuJoCo would reset a world that goes bad.
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
    return NanDump(arrays, model)


def _hash(binary: bytes) -> str:
    return hashlib.sha256(binary).hexdigest()


def _check(arrays: Mapping[str, np.ndarray]) -> None:
    """Raise ValueError, KeyError or TypeError for arrays that no dump has."""
    steps, worlds = len(arrays["action"]), arrays["worlds"]
    if worlds.ndim != 1 or worlds.dtype.kind != "i" or len(set(worlds.tolist())) < len(worlds):
        raise ValueError("its worlds are no list of numbers")
    if arrays["task"].dtype.kind != "U" or arrays["task"].shape:
        raise ValueError("it names no task")
    for name in ("iteration", "num_envs", "decimation"):
        if arrays[name].shape or not 0 <= int(arrays[name]) <= MAX_NUMBER:
            raise ValueError(f"its {name} is {arrays[name]}")
    if arrays["done"].shape != (steps, len(worlds)):
        raise ValueError("its done has another number of steps or worlds")
    for name in checked_arrays(arrays):
        values = arrays[name]
        if values.dtype.kind not in "fiub" or values.ndim < 2 or values.shape[1] != len(worlds):
            raise ValueError(f"its {name} is no array of numbers of these worlds")
        if len(values) != steps + name.startswith(("start/", "observation/")):
            raise ValueError(f"its {name} has another number of steps")
        if name.startswith("start/") and name.removeprefix("start/") not in STATE:
            raise ValueError(f"{name} is no state of MuJoCo")
    if not len(worlds) or all(np.isfinite(arrays[n]).all() for n in checked_arrays(arrays)):
        raise ValueError("all of its numbers are finite")


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
