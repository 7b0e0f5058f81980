"""failures/nan_rank<r>.npz: a rollout of the worlds in which a number was not finite.

Written by a worker, read by `mjfleet inspect`. Arrays have steps first, then worlds; k is a step of
the rollout, T the number of its steps:

    start/<field>[k]        state and inputs as the physics of step k started; [T]: after the resets
    end/<field>[k]          qpos, qvel, act as the physics of step k ended, before any reset
    observation/<group>[k]  what the policy saw before step k; [T]: what it would have seen next
    action[k]  term/<name>[k]  reward[k]  done[k]      reward as it is learned from
    worlds  num_envs  iteration  decimation  explanation
"""

import copy
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np

from mjfleet.utils.atomic_write import write_atomically

_ORDER = (
    "start/time", "start/qpos", "start/qvel", "start/act", "observation/", "action", "start/",
    "end/", "term/", "reward",
)  # fmt: skip
"""The order in which quantities are computed within a step, by the beginnings of their names."""
SHOWN_STEPS = 6  # Up to a bad number.
SHOWN = ("action", "start/ctrl", "start/qpos", "start/qvel", "end/qvel")
CAUSES = {
    "start": "The task wrote it: the action, and the physics before it, were finite.",
    "end": "The physics made it: a smaller timestep, softer contacts or smaller gains may help.",
    "observation": "States, actions and rewards before it were finite: `observe` made it.",
    "action": "The observation was finite: the policy made it.",
    "term": "The state was finite: `rewards` made it.",
    "reward": "Its terms were finite: the critic's value at a time-out or an intrinsic reward.",
}
"""What computed a number that is the first one not to be finite, by the kind of its array."""


class BadNumber(NamedTuple):
    """The first number of a world that is not finite; of two, the smaller came first."""

    step: int
    place: int  # Of the quantity in the order of computation within a step.
    name: str
    component: int


def first_bad_number(arrays: Mapping[str, np.ndarray], index: int) -> BadNumber:
    """Return the first number of a world that is not finite; `index` is its place in the arrays."""
    found = []
    for place, name in enumerate(checked_arrays(arrays)):
        values = arrays[name][:, index].reshape(len(arrays[name]), -1)
        steps, components = np.nonzero(~np.isfinite(values))
        if steps.size:
            found.append(BadNumber(int(steps[0]), place, name, int(components[0])))
    return min(found)


def checked_arrays(names: Collection[str]) -> list[str]:
    """Return the arrays of a dump that must be finite, in the order of their computation."""
    return list(dict.fromkeys(n for start in _ORDER for n in names if n.startswith(start)))


def name_of(model: mujoco.MjModel, bad: BadNumber) -> str:
    """Return array and component of a number, and the joint or actuator that it belongs to."""
    kind, _, field = bad.name.partition("/")
    if kind in ("reward", "term"):
        return bad.name
    name = f"{bad.name}[{bad.component}]"
    owners = {
        "qpos": (model.joint, model.jnt_qposadr),
        "qvel": (model.joint, model.jnt_dofadr),
        "ctrl": (model.actuator, model.actuator_ctrladr),
    }
    if kind not in ("start", "end") or field not in owners:
        return name
    find, first_components = owners[field]
    owner = find(int(np.searchsorted(first_components, bad.component, side="right")) - 1)
    return f"{name} ({find.__name__} {owner.name or owner.id})"


def save(path: Path, arrays: Mapping[str, Any], model: mujoco.MjModel) -> None:
    """Write a dump with its explanation, whole or not at all; create its folder if needed."""
    bad = {int(w): first_bad_number(arrays, i) for i, w in enumerate(arrays["worlds"])}
    head = f"iteration {arrays['iteration']}: {len(bad)} of {arrays['num_envs']} worlds"
    earliest = sorted(bad, key=lambda world: bad[world])
    text = "\n\n".join([head, *(_explain(arrays, model, w, bad[w]) for w in earliest)])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda f: np.savez_compressed(f, **arrays, explanation=text))


def _explain(arrays: Mapping[str, Any], model: mujoco.MjModel, world: int, bad: BadNumber) -> str:
    """Return a world's first bad number, what led up to it, and what computed it."""
    index = arrays["worlds"].tolist().index(world)
    value = arrays[bad.name][bad.step, index].reshape(-1)[bad.component]
    lines = [f"world {world}: {name_of(model, bad)} is {value} in step {bad.step}"]
    steps = range(max(0, bad.step - SHOWN_STEPS + 1), bad.step + 1)
    rows = [("largest |value| in step", [str(step) for step in steps])]
    for name in dict.fromkeys((*SHOWN, bad.name)):
        some = np.abs(arrays[name][steps[0] : steps[-1] + 1, index])
        rows.append((name, [f"{row.max(initial=0):.4g}" for row in some]))
    lines += [f"  {name:<24}" + "".join(f"{x:>12}" for x in cells) for name, cells in rows]
    kind = bad.name.partition("/")[0]
    lines.append(f"  {CAUSES[kind]}")
    if kind == "end":
        speed = np.abs(_replay(arrays, model, index, bad.step).qvel).max(initial=0)
        lines.append(f"  MuJoCo's own engine ends this step with |qvel| up to {speed:.4g}.")
    return "\n".join(lines)


def _replay(
    arrays: Mapping[str, Any], model: mujoco.MjModel, index: int, step: int
) -> mujoco.MjData:
    """Return the state after the physics of a step, simulated again by MuJoCo's own engine."""
    # Otherwise MuJoCo writes warnings to a file, and resets a world that goes bad.
    mujoco.set_mju_user_warning(lambda message: None)
    model = copy.copy(model)
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
    data = mujoco.MjData(model)
    for name in (name for name in arrays if name.startswith("start/")):
        setattr(data, name.removeprefix("start/"), arrays[name][step, index])
    mujoco.mj_step(model, data, nstep=arrays["decimation"])
    return data
