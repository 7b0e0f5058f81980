"""Explains a world's first bad number: the values that led to it, and the likely cause.

Runs in the process of `mjfleet inspect`.
"""

from typing import Any

import mujoco
import numpy as np

from mjfleet.nan_dump.dump_file import BadNumber, NanDump, checked_arrays

SHOWN_STEPS = 6  # Steps up to a bad number whose largest values are shown.
ALWAYS_SHOWN = ("action", "start/ctrl", "start/qpos", "start/qvel", "end/qvel")


def explain_world(dump: NanDump, world: int, bad: BadNumber) -> str:
    """Return several lines about a world's first bad number."""
    index = dump.worlds.index(world)

    def values(name: str) -> np.ndarray:
        return dump.arrays[name][:, index].reshape(len(dump.arrays[name]), -1)

    bad_values = values(bad.name)[:, bad.component]
    was = f", {bad_values[bad.step - 1]:.6g} a step before" if bad.step else ""
    what = name_of(dump.model, bad)
    steps = range(max(0, bad.step - SHOWN_STEPS + 1), bad.step + 1)
    rows = [("largest |value| at step", [str(step) for step in steps])]
    for name in checked_arrays(dump.arrays):
        if name in (*ALWAYS_SHOWN, bad.name):
            largest = np.abs(values(name)).max(axis=1)
            rows.append((name, [f"{largest[s]:.4g}" if s < len(largest) else "" for s in steps]))
    return "\n".join(
        [
            f"world {world}: {what} is {bad_values[bad.step]} {_when(dump, bad)}{was}",
            *(f"  {name:<24}" + "".join(f"{x:>12}" for x in cells) for name, cells in rows),
            f"  {_cause(dump, world, bad)}",
        ]
    )


def name_of(model: mujoco.MjModel, bad: BadNumber) -> str:
    """Return quantity and component of a number, and the joint or actuator that it belongs to."""
    kind, _, rest = bad.name.partition("/")
    labels = {"observation": f"observation group {rest!r}", "term": f"reward term {rest!r}"}
    component = "" if kind in ("reward", "term") else f"[{bad.component}]{_owner(model, bad)}"
    return labels.get(kind, rest or kind) + component


def _when(dump: NanDump, bad: BadNumber) -> str:
    if bad.step == dump.num_steps:
        return f"after step {bad.step - 1}, the last"
    when = {
        "observation": "before step {}",
        "action": "at step {}",
        "start": "where the physics of step {} starts",
        "end": "where the physics of step {} ends",
    }
    return when.get(bad.name.partition("/")[0], "after the physics of step {}").format(bad.step)


def _cause(dump: NanDump, world: int, bad: BadNumber) -> str:
    """Return what computed the bad number: all numbers computed before it are finite."""
    kind, _, field = bad.name.partition("/")
    if kind == "end":
        return _compare_replay(dump.replay(world, bad.step), bad)
    if kind == "start" and field in ("ctrl", "qfrc_applied", "xfrc_applied"):
        return "The action was finite: the task wrote it, in `apply` most likely."
    if kind == "start" and bad.step:
        if dump.arrays["done"][bad.step - 1, dump.worlds.index(world)]:
            return "Its episode had just begun: the task wrote it."
        replayed = dump.replay(world, bad.step - 1)
        if not _is_finite(replayed):
            return _compare_replay(replayed, bad)
        return f"In MuJoCo, step {bad.step - 1} ends finite: the task wrote it afterwards."
    return {
        "start": "The task wrote it.",
        "observation": "States, actions and rewards before it were finite: `observe` made it.",
        "action": "The observation was finite: the policy made it.",
        "term": "The state was finite: `rewards` made it.",
        "reward": "Its terms were finite: the critic's value at a time-out or an intrinsic reward.",
    }[kind]


def _compare_replay(data: mujoco.MjData, bad: BadNumber) -> str:
    """Return what MuJoCo's replay of the step says about the cause."""
    if _is_finite(data):
        return (
            f"Replayed in MuJoCo, in double precision, step {bad.step} ends finite, with |qvel| up "
            f"to {np.abs(data.qvel).max(initial=0):.4g}: on the verge of instability, or a fault "
            "of MuJoCo-Warp."
        )
    return (
        "Replayed in MuJoCo it goes bad too: the simulation is unstable there. A smaller timestep, "
        "softer contacts or smaller gains may help."
    )


def _is_finite(data: mujoco.MjData) -> bool:
    """Return whether the state is finite and MuJoCo has not reported it as unstable."""
    kinds = mujoco.mjtWarning
    unstable = (kinds.mjWARN_BADQPOS, kinds.mjWARN_BADQVEL, kinds.mjWARN_BADQACC)
    is_unstable = any(data.warning[kind].number for kind in unstable)
    return not is_unstable and bool(np.isfinite([*data.qpos, *data.qvel, *data.act]).all())


def _owner(model: mujoco.MjModel, bad: BadNumber) -> str:
    """Return the joint or actuator that a component belongs to, in parentheses."""
    i = bad.component
    owners: dict[str, tuple[str, Any]] = {
        "qpos": ("joint", np.searchsorted(model.jnt_qposadr, i, side="right") - 1),
        "qvel": ("joint", model.dof_jntid[i] if i < model.nv else 0),
        "ctrl": ("actuator", i),
        "act": ("actuator", np.searchsorted(model.actuator_actadr, i, side="right") - 1),
    }
    moment, _, field = bad.name.partition("/")
    if moment not in ("start", "end") or field not in owners:
        return ""
    kind, index = owners[field]
    return f" ({kind} {getattr(model, kind)(int(index)).name or index})"
