"""Where episodes start, and what `setup` and `make_model` do to the model."""

import inspect
from collections.abc import Iterator
from typing import Any

import mujoco
import numpy as np
import torch
from mujoco import mjtJoint

from mjfleet.env.environment import Env
from mjfleet.tools.check_task.call_trace import CallTrace, method_place
from mjfleet.tools.check_task.finding import Finding, Place
from mjfleet.tools.check_task.snapshot import Snapshot

BEYOND = 0.1  # Share of a joint's range by which a start may be outside of it.
FEW_STARTS = 8  # Worlds whose contacts are computed at the start of an episode.
DEEP = 0.05  # Share of a model's extent by which bodies must overlap before it is told.
LOOKS = ("mat_", "tex_", "light_", "cam_", "skin_")
OFTEN = 0.05  # Share of worlds in which something must be wrong before it is told.


def first_states(env: Env[Any], trace: CallTrace) -> Iterator[Finding]:
    """Find that `reset_worlds` writes angles beyond joints' limits, or what is no quaternion."""
    snapshot, model = Snapshot(env), env.sim.model
    env._reset(torch.ones_like(env._whole))
    positions = env.sim.qpos.double().cpu().clone()
    place = trace.writer_of(env.sim.qpos) or method_place(env, "reset_worlds")
    snapshot.restore()
    for joint in range(model.njnt):
        name, at = model.joint(joint).name or str(joint), int(model.jnt_qposadr[joint])
        kind = mjtJoint(model.jnt_type[joint])
        if kind in (mjtJoint.mjJNT_FREE, mjtJoint.mjJNT_BALL):
            first = at + 3 * (kind == mjtJoint.mjJNT_FREE)
            sizes = positions[:, first : first + 4].norm(dim=1)
            if float(((sizes - 1).abs() > 0.01).double().mean()) > OFTEN:
                yield Finding(
                    f"the quaternion of joint {name} has norm {float(sizes.min()):.2g} to "
                    f"{float(sizes.max()):.2g} at the start of episodes; write w, x, y, z, in this "
                    "order and with norm 1",
                    place,
                )
        elif model.jnt_limited[joint]:
            low, high = (float(end) for end in model.jnt_range[joint])
            slack, values = BEYOND * (high - low), positions[:, at]
            beyond = (values < low - slack) | (values > high + slack)
            if float(beyond.double().mean()) > OFTEN:
                yield Finding(
                    f"episodes start with joint {name} at {float(values.min()):.3g} to "
                    f"{float(values.max()):.3g}, beyond its range of {low:.3g} to {high:.3g} in "
                    "the model, so that it is thrown back; write positions in rad or m within it",
                    place,
                )


def overlaps(env: Env[Any], trace: CallTrace) -> Iterator[Finding]:
    """Find that bodies overlap at the start of most episodes."""
    snapshot, model = Snapshot(env), env.sim.model
    env._reset(torch.ones_like(env._whole))
    state = env.sim.qpos.double().cpu().numpy().copy(), env.sim.mocap_pos.double().cpu().numpy()
    place = trace.writer_of(env.sim.qpos) or method_place(env, "reset_worlds")
    data, depths = mujoco.MjData(model), list[tuple[float, str]]()
    for qpos, mocap_pos in list(zip(*state, strict=True))[:FEW_STARTS]:
        data.qpos, data.mocap_pos = qpos, mocap_pos
        mujoco.mj_forward(model, data)
        touching = [contact for contact in data.contact if min(contact.geom) >= 0]
        contacts = sorted(touching, key=lambda contact: contact.dist)[:1]
        depths += [(-contact.dist, " and ".join(_name(model, int(geom)) for geom in contact.geom))
                   for contact in contacts]  # fmt: skip
    snapshot.restore()
    deep = [depth for depth in depths if depth[0] > max(0.02, DEEP * float(model.stat.extent))]
    if len(deep) > FEW_STARTS / 2:
        yield Finding(
            f"episodes start with geoms {max(deep)[1]} overlapping by up to {max(deep)[0]:.2g} m, "
            "so that the robot is thrown away; start higher, or apart",
            place,
            is_sure=False,
        )


def _name(model: mujoco.MjModel, geom: int) -> str:
    return model.geom(geom).name or f"{geom} of {model.body(model.geom_bodyid[geom]).name}"


def changed_model(env: Env[Any]) -> Iterator[Finding]:
    """Find that `setup` writes to the model, or that `make_model` returns another each time."""
    model = type(env).make_model(env.cfg)
    written = _differences(model, env.sim.model)
    if not written:
        return
    if varied := _differences(model, type(env).make_model(env.cfg)):
        yield Finding(
            f"make_model() returns another model in each call: {', '.join(varied)} differ, so that "
            "workers, evaluations and resumed runs train on different robots; let every number "
            "follow from cfg, seeds too",
            method_place(env, "make_model"),
        )
    else:
        yield Finding(
            f"setup() changes sim.model.{', '.join(written)}, which the engine may have read "
            "already: MuJoCo-Warp has, and MuJoCo's own engine has computed no constants from it; "
            f'write self.sim.expand("{written[0]}")[:] = ..., or change it in make_model()',
            _line_of(env, "setup", written[0]),
        )


def _line_of(env: Env[Any], method: str, text: str) -> Place | None:
    """Return the first line of a method that holds a text, or its own first line."""
    place = method_place(env, method)
    if place is None:
        return None
    lines, first = inspect.getsourcelines(getattr(type(env), method))
    number = next((i for i, line in enumerate(lines) if text in line), 0)
    return place._replace(line=first + number)


def _differences(one: mujoco.MjModel, other: mujoco.MjModel) -> list[str]:
    """Return the names of arrays of numbers that differ, except for colours and the like."""
    names = [name for name in dir(one) if isinstance(getattr(one, name, None), np.ndarray)]
    names = [name for name in names if not name.startswith(LOOKS) and "rgba" not in name]
    pairs = ((name, getattr(one, name), getattr(other, name)) for name in names)
    return [name for name, ours, theirs in pairs if not np.array_equal(ours, theirs, True)]
