"""`mjfleet inspect`: which number of which world went bad first, and what MuJoCo makes of it."""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from mjfleet.errors import UserError
from mjfleet.nan_dump.dump_file import Bad, first_bad, label, watched

NEWEST = 6
"""How many steps the run-up to a bad number shows."""


@dataclass(frozen=True)
class NanDump:
    """A dump and the model it was recorded with."""

    arrays: Mapping[str, np.ndarray]
    """By the names that mjfleet.nan_dump.dump_file lists."""
    model: mujoco.MjModel

    @property
    def num_steps(self) -> int:
        return len(self.arrays["action"])

    @property
    def worlds(self) -> list[int]:
        return self.arrays["worlds"].tolist()

    def replay(self, world: int, step: int) -> mujoco.MjData:
        """Where MuJoCo's own engine gets from where a step's physics started.

        Raises:
            UserError: there is no such world or step in the dump.
        """
        if world not in self.worlds or not 0 <= step < self.num_steps:
            raise UserError(
                f"world {world}, step {step}: the dump holds worlds "
                f"{', '.join(map(str, self.worlds))} and steps 0 to {self.num_steps - 1}."
            )
        place = self.worlds.index(world)
        data = mujoco.MjData(self.model)
        for name, values in self.arrays.items():
            if name.startswith("start/"):
                field, value = name.removeprefix("start/"), values[step, place]
                if field == "time":
                    data.time = float(value)
                else:
                    getattr(data, field)[:] = value
        # Otherwise MuJoCo would put a world that goes bad back to where the model starts.
        with_reset = self.model.opt.disableflags
        self.model.opt.disableflags = with_reset | mujoco.mjtDisableBit.mjDSBL_AUTORESET
        try:
            mujoco.mj_step(self.model, data, nstep=int(self.arrays["decimation"]))
        finally:
            self.model.opt.disableflags = with_reset
        return data


def load(path: Path | str) -> NanDump:
    """Read a dump.

    Raises:
        UserError: there is none there, or its model is of another version of MuJoCo.
    """
    # MuJoCo would print its warnings, and append them to a file in the folder of whoever looks.
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        binary, version = arrays.pop("model").tobytes(), str(arrays.pop("mujoco"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except (ValueError, TypeError, KeyError, AttributeError, EOFError, zipfile.BadZipFile):
        raise UserError(f"{path} is no dump; those of a run are failures/nan_rank<r>.npz") from None
    try:
        model = mujoco.MjModel.from_binary_path("model.mjb", {"model.mjb": binary})
    except ValueError as error:
        raise UserError(
            f"{path} was written with MuJoCo {version}, and this is {mujoco.__version__}: {error}"
        ) from None
    return NanDump(arrays, model)


def describe(path: Path | str) -> str:
    """What `mjfleet inspect` prints of a dump."""
    dump = load(path)
    facts = {name: dump.arrays[name].item() for name in ("task", "iteration", "num_envs")}
    firsts = {world: first_bad(dump.arrays, place) for place, world in enumerate(dump.worlds)}
    worlds = sorted(firsts, key=firsts.__getitem__)
    return "\n".join(
        [
            f"{facts['task']}, iteration {facts['iteration']}: {len(worlds)} of "
            f"{facts['num_envs']} worlds, {dump.num_steps} steps",
            *(line for world in worlds for line in _world(dump, world, firsts[world])),
            "",
            "In Python, from where the physics of a step started:",
            "  from mjfleet.nan_dump.command import load",
            f"  dump = load({str(path)!r})",
            f"  data = dump.replay(world={worlds[0]}, step={_last_good(firsts[worlds[0]])})",
        ]
    )


def _world(dump: NanDump, world: int, bad: Bad) -> list[str]:
    """What happened to one world."""
    place = dump.worlds.index(world)
    values = dump.arrays[bad.name][:, place].reshape(len(dump.arrays[bad.name]), -1)
    what = f"{label(bad.name)}[{bad.component}]{_owner(dump.model, bad)}"
    was = f", {values[bad.step - 1, bad.component]:.6g} a step before" if bad.step else ""
    steps = range(max(0, bad.step - NEWEST + 1), bad.step + 1)
    rows = [("largest |value| at step", [str(step) for step in steps])]
    for name in _shown(dump, bad):
        each = dump.arrays[name][:, place].reshape(len(dump.arrays[name]), -1)
        largest = [f"{np.abs(each[s]).max():.4g}" if s < len(each) else "" for s in steps]
        rows.append((name, largest))
    return [
        "",
        f"world {world}: {what} is {values[bad.step, bad.component]} {_when(dump, bad)}{was}",
        *(f"  {name:<24}" + "".join(f"{cell:>12}" for cell in cells) for name, cells in rows),
        f"  {_cause(dump, world, bad)}",
    ]


def _shown(dump: NanDump, bad: Bad) -> list[str]:
    """The quantities whose run-up is shown: those that blow up, and the one that went bad."""
    usual = ("action", "start/ctrl", "start/qpos", "start/qvel", "end/qvel", bad.name)
    return [name for name in watched(dump.arrays) if name in usual]


def _when(dump: NanDump, bad: Bad) -> str:
    if bad.step == dump.num_steps:
        return f"after step {bad.step - 1}, the last"
    kind = bad.name.partition("/")[0]
    return {
        "observation": f"before step {bad.step}",
        "action": f"at step {bad.step}",
        "start": f"where the physics of step {bad.step} starts",
        "end": f"where the physics of step {bad.step} ends",
    }.get(kind, f"after the physics of step {bad.step}")


def _cause(dump: NanDump, world: int, bad: Bad) -> str:
    """Who must have made that number: everything before it was finite."""
    kind, _, field = bad.name.partition("/")
    if kind == "end":
        return _replayed(dump.replay(world, bad.step), bad)
    if kind == "start" and field in ("ctrl", "qfrc_applied", "xfrc_applied"):
        return "The action was finite: the task wrote it, in `apply` most likely."
    if kind == "start":
        done = bad.step and dump.arrays["done"][bad.step - 1, dump.worlds.index(world)]
        if bad.step and not done:
            replayed = dump.replay(world, bad.step - 1)
            if not _finite(replayed):
                return _replayed(replayed, bad)
            return f"In MuJoCo, step {bad.step - 1} ends finite: the task wrote it afterwards."
        return f"{'Its episode had just begun: the' if done else 'The'} task wrote it."
    return {
        "observation": "States, actions and rewards before it were finite: `observe` made it.",
        "action": "The observation was finite: the policy made it.",
        "term": "The state was finite: `rewards` made it.",
        "reward": "Its terms were finite: the critic's value at a time-out or an intrinsic reward.",
    }[kind]


def _replayed(data: mujoco.MjData, bad: Bad) -> str:
    """What a replay of the bad step says about it."""
    if _finite(data):
        return (
            f"Replayed in MuJoCo, in double precision, step {bad.step} ends finite, with |qvel| up "
            f"to {np.abs(data.qvel).max(initial=0):.4g}: on the verge of instability, or a fault "
            "of MuJoCo-Warp."
        )
    return (
        "Replayed in MuJoCo it goes bad too: the simulation is unstable there. A smaller timestep, "
        "softer contacts or smaller gains may help."
    )


def _finite(data: mujoco.MjData) -> bool:
    warned = (data.warning[kind].number for kind in _UNSTABLE)
    return not any(warned) and bool(np.isfinite([*data.qpos, *data.qvel, *data.act]).all())


_UNSTABLE = (
    mujoco.mjtWarning.mjWARN_BADQPOS,
    mujoco.mjtWarning.mjWARN_BADQVEL,
    mujoco.mjtWarning.mjWARN_BADQACC,
)


def _last_good(bad: Bad) -> int:
    """The step to replay: the one that went bad, or that which led to a bad start."""
    kind = bad.name.partition("/")[0]
    return max(0, bad.step - (kind in ("start", "observation")))


def _owner(model: mujoco.MjModel, bad: Bad) -> str:
    """The joint or actuator that a component belongs to, in parentheses."""
    field, i = bad.name.partition("/")[2], bad.component
    if field == "qpos":
        kind, index = "joint", int(np.searchsorted(model.jnt_qposadr, i, side="right")) - 1
    elif field == "qvel":
        kind, index = "joint", int(model.dof_jntid[i])
    elif field == "ctrl":
        kind, index = "actuator", i
    elif field == "act":
        kind, index = "actuator", int(np.searchsorted(model.actuator_actadr, i, side="right")) - 1
    else:
        return ""
    element: Any = model.joint(index) if kind == "joint" else model.actuator(index)
    return f" ({kind} {element.name or index})"
