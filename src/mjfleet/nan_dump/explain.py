"""Explains the first number of a rollout that is not finite, and dumps the worlds that have one.

Runs in a worker. A dump, failures/nan_rank<r>.npz, is a rollout of worlds in which a number was not
finite; `mjfleet inspect` prints its explanation. Arrays have steps first, then worlds; k is a step
of the rollout, T the number of its steps:

    start/<field>[k]        state and inputs as the physics of step k started; [T]: after the resets
    end/<field>[k]          qpos, qvel, act as the physics of step k ended, before any reset
    observation/<group>[k]  what the policy saw before step k; [T]: what it would have seen next
    action[k]  term/<name>[k]  reward[k]  done[k]      reward as it is learned from
    worlds  num_envs  iteration  decimation  explanation
"""

import copy
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np

from mjfleet.env import Env
from mjfleet.utils.atomic_write import write_atomically

MAX_WORLDS = 16  # In a dump: those that went bad first.
_ORDER = (
    "start/time", "start/qpos", "start/qvel", "start/act", "observation/", "action", "start/",
    "end/", "term/", "reward",
)  # fmt: skip
"""The order in which quantities are computed within a step, by the beginnings of their names."""
SHOWN_STEPS = 6  # Up to a bad number.
SHOWN_QUANTITIES = ("action", "start/ctrl", "start/qpos", "start/qvel", "end/qvel")
NAN_CAUSES = {
    "start": "The task wrote it: the action, and the physics before it, were finite.",
    "end": "The physics made it: a smaller timestep, softer contacts or smaller gains may help.",
    "observation": "States, actions and rewards before it were finite: `observe` made it.",
    "action": "The observation was finite: the policy made it.",
    "term": "The state was finite: `rewards` made it.",
    "reward": "Its terms were finite: the critic's value at a time-out or an intrinsic reward.",
}
"""What computed a number that is the first one not to be finite, by the kind of its array."""


def explain(
    env: Env[Any],
    rollout: Mapping[str, np.ndarray],
    worlds: Sequence[int],
    iteration: int,
    dump_to: Path | None,
) -> tuple[str, str]:
    """Name the first number that is not finite, and dump the worlds in which there is one.

    Args:
        rollout: the arrays of a dump, `(steps, worlds, ...)`, with `terms` for all reward terms.
        worlds: numbers of these worlds.
        iteration: of the rollout.
        dump_to: the file; None: nothing is dumped.

    Returns:
        A message about them, and the flag that has such worlds reset from now on, unless the
        policy made the first of the numbers.
    """
    arrays = dict(rollout)
    terms = arrays.pop("terms")
    arrays |= {f"term/{name}": terms[:, :, i] for i, name in enumerate(env.reward_names)}
    firsts = [first_bad_number(arrays, index) for index in range(len(worlds))]
    first = min(firsts)
    text = (
        f"{name_of(env.sim.model, first)} is not finite in {len(worlds)} of {env.num_envs} worlds "
        f"({', '.join(map(str, worlds[:5]))}{', ...' if len(worlds) > 5 else ''})"
    )
    is_of_task = env.on_nan == "stop" and first.name != "action"
    flag = "--on-nan reset" if is_of_task else ""
    if dump_to is None:
        return text, flag
    chosen = sorted(range(len(worlds)), key=firsts.__getitem__)[:MAX_WORLDS]
    dump: dict[str, Any] = {name: values[:, chosen] for name, values in arrays.items()}
    dump |= {"worlds": np.array(worlds)[chosen], "iteration": iteration}
    dump |= {"num_envs": env.num_envs, "decimation": env.cfg.decimation}
    try:
        _save(dump_to, dump, env.sim.model, [firsts[index] for index in chosen])
    except OSError as error:
        # This error must not hide the trouble, which all ranks report together.
        return f"{text}; no dump of it could be written to {dump_to}: {error}", flag
    command = f"mjfleet inspect {shlex.quote(str(dump_to))}"
    return f"{text}; `{command}` shows what went bad first", flag


class BadNumber(NamedTuple):
    """The first number of a world that is not finite; of two, the smaller came first."""

    step: int
    place: int  # The quantity's place in the order of computation within a step.
    name: str
    component: int


def first_bad_number(arrays: Mapping[str, np.ndarray], index: int) -> BadNumber:
    """Return the first number of a world that is not finite; `index` is its place in the arrays."""
    found = []
    names = dict.fromkeys(n for start in _ORDER for n in arrays if n.startswith(start))
    for place, name in enumerate(names):
        values = arrays[name][:, index].reshape(len(arrays[name]), -1)
        steps, components = np.nonzero(~np.isfinite(values))
        if steps.size:
            found.append(BadNumber(int(steps[0]), place, name, int(components[0])))
    return min(found)


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


def _save(
    path: Path, arrays: Mapping[str, Any], model: mujoco.MjModel, firsts: Sequence[BadNumber]
) -> None:
    """Write a dump with its explanation, whole or not at all; create its folder if needed.

    `firsts` are the first bad numbers of the worlds, in their order in `arrays`.
    """
    head = f"iteration {arrays['iteration']}: {len(firsts)} of {arrays['num_envs']} worlds"
    found = [_explain(arrays, model, index, bad) for index, bad in enumerate(firsts)]
    text = "\n\n".join([head, *found])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda f: np.savez_compressed(f, **arrays, explanation=text))


def _explain(arrays: Mapping[str, Any], model: mujoco.MjModel, index: int, bad: BadNumber) -> str:
    """Return the first bad number of the world at `index` in a dump, what led up to it, and what
    computed it."""
    world, value = arrays["worlds"][index], arrays[bad.name][bad.step, index].reshape(-1)
    lines = [f"world {world}: {name_of(model, bad)} is {value[bad.component]} in step {bad.step}"]
    steps = range(max(0, bad.step - SHOWN_STEPS + 1), bad.step + 1)
    rows = [("largest |value| in step", [str(step) for step in steps])]
    for name in dict.fromkeys((*SHOWN_QUANTITIES, bad.name)):
        sizes = np.abs(arrays[name][steps[0] : steps[-1] + 1, index])
        rows.append((name, [f"{row.max(initial=0):.4g}" for row in sizes]))
    lines += [f"  {name:<24}" + "".join(f"{x:>12}" for x in cells) for name, cells in rows]
    kind = bad.name.partition("/")[0]
    lines.append(f"  {NAN_CAUSES[kind]}")
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
