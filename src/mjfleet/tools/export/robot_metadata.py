"""What a robot's runtime needs to run a policy, as plain JSON data; see docs/deploy.md."""

import json
from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
from mujoco import mjtBias, mjtDyn, mjtGain, mjtJoint, mjtTrn

from mjfleet.env.environment import Env
from mjfleet.env.return_checks import observation_sizes
from mjfleet.env.step_recorder import RECORDED_FIELDS
from mjfleet.errors import UserError

HOME = "home"  # Name of the keyframe that holds the default pose.
ENTRIES = (
    "actuator_names", "actuator_kinds", "joint_names", "default_pose", "kp", "kv", "gear",
    "torque_limits",
)  # fmt: skip
"""Lists with an item for each actuator."""
JOINT_KINDS = mjtTrn.mjTRN_JOINT, mjtTrn.mjTRN_JOINTINPARENT
JOINT_AXES = {mjtJoint.mjJNT_BALL: 3, mjtJoint.mjJNT_FREE: 6}
OTHER_AXES = {mjtTrn.mjTRN_TENDON: 1, mjtTrn.mjTRN_SLIDERCRANK: 1, mjtTrn.mjTRN_SITE: 6}
"""How many numbers of its gear an actuator uses: 1 for other joints, none for a body.

Several are an axis of rotation of a ball joint, or axes of force and torque: see `general/joint`
and `general/site` in MuJoCo's XML reference.
"""


def describe(env: Env[Any], groups: Sequence[str]) -> dict[str, Any]:
    """Return the model's entries, with those of the task's `deployment()` added or replacing them.

    `groups` are the policy's observation groups, in order. UserError if `deployment()` returns no
    plain JSON data, or describes an observation by parts of another total size.
    """
    own, what = env.deployment(), f"{type(env).__name__}.deployment()"
    try:
        own = json.loads(json.dumps(dict(own), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} must return a dictionary of plain JSON data: {error}.") from None
    layouts, sizes = own.pop("observations", {}), observation_sizes(env)
    if not (isinstance(layouts, dict) and layouts.keys() <= sizes.keys()):
        raise UserError(f"{what}: `observations` must hold parts by group: {', '.join(sizes)}.")
    images = [name for name in groups if isinstance(sizes[name], tuple)]
    observations: list[dict[str, Any]] = []
    for name in (name for name in groups if name not in images):
        parts = {"parts": layouts[name]} if name in layouts else {}
        observations.append({"name": name, "size": sizes[name], **parts})
        _check_part(observations[-1], what)
    return {
        "control_rate": round(1 / env.step_dt, 6),
        "timestep": float(env.sim.model.opt.timestep),
        "decimation": env.cfg.decimation,
        "observation_size": sum(group["size"] for group in observations),
        "observations": observations,
        **({"images": [_image(env, name) for name in images]} if images else {}),
        **({"cameras": [c.describe() for c in env.policy_cameras]} if images else {}),
        "action_size": env.num_actions,
        **_actuators(env.sim.model),
        "commands": [
            {"name": name, "range": [low, high]} for name, (_, low, high) in env.commands().items()
        ],
        "start": {k: v[0].tolist() for k in RECORDED_FIELDS if (v := getattr(env.sim, k)).numel()},
        "mujoco_version": mujoco.__version__,
        **own,
    }


def _image(env: Env[Any], name: str) -> dict[str, Any]:
    shape, dtype = observation_sizes(env)[name], env.get_observations()[name].dtype
    return {"name": name, "shape": shape, "type": str(dtype).removeprefix("torch.")}


def _check_part(part: Any, what: str) -> None:
    """Check that the sizes of parts add up; a robot that misplaced numbers would fall."""
    if not (isinstance(part, dict) and {"name", "size"} <= part.keys()):
        raise UserError(
            f"{what}: a part of an observation needs a name and a size; this is {part}."
        )
    if "parts" in part:
        for inner in part["parts"]:
            _check_part(inner, what)
        found = part.get("history", 1) * sum(inner["size"] for inner in part["parts"])
        if found != part["size"]:
            raise UserError(
                f"{what}: the sizes of the parts of {part['name']!r} add up to {found}, but its "
                f"size is {part['size']}."
            )


def _actuators(model: mujoco.MjModel) -> dict[str, list[Any] | None]:
    """Return lists in the order of the model's actuators; None for what an actuator lacks.

    Ranges of controls are in the order of the controls: an actuator may have several.
    """
    rows = [_actuator(model, i) for i in range(model.nactuator)]
    entries: dict[str, list[Any] | None] = {k: [row[k] for row in rows] for k in ENTRIES}
    if mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_KEY, HOME) < 0:
        entries["default_pose"] = None
    ranges = zip(model.actuator_ctrlrange.tolist(), model.actuator_ctrllimited, strict=True)
    entries["control_ranges"] = [ends if is_limited else None for ends, is_limited in ranges]
    return entries


def _actuator(model: mujoco.MjModel, i: int) -> dict[str, Any]:
    """Return the entries of an actuator, None for what it lacks."""
    kind, target = mjtTrn(model.actuator_trntype[i]), int(model.actuator_trnid[i, 0])
    axes, joint = OTHER_AXES.get(kind, 0), None
    if kind in JOINT_KINDS:
        axes = JOINT_AXES.get(mjtJoint(model.jnt_type[target]), 1)
        joint = target if axes == 1 else None
    key = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_KEY, HOME)
    has_pose = joint is not None and key >= 0
    gear = model.actuator_gear[model.actuator_outadr[i], :axes].tolist()
    actuator_kind, kp, kv = _gains(model, i)
    return {
        "actuator_names": model.actuator(i).name,
        "actuator_kinds": actuator_kind,
        "joint_names": None if joint is None else model.joint(joint).name,
        "default_pose": float(model.key_qpos[key, model.jnt_qposadr[joint]]) if has_pose else None,
        "kp": kp,
        "kv": kv,
        "gear": gear[0] if axes == 1 else gear or None,
        "torque_limits": _torque_limits(model, i, kind, gear[0]) if axes == 1 else None,
    }


def _gains(model: mujoco.MjModel, i: int) -> tuple[str, float | None, float | None]:
    """Return the kind of an actuator, by MuJoCo's name of its element, with its kp and kv.

    Its force is gain * control + bias, each of which may be affine in length and velocity.
    """
    gain, bias = model.actuator_gainprm[i], model.actuator_biasprm[i]
    kinds = (model.actuator_gaintype[i], model.actuator_biastype[i])
    if kinds == (mjtGain.mjGAIN_FIXED, mjtBias.mjBIAS_AFFINE):
        if gain[0] == -bias[1] != 0:
            is_integrated = model.actuator_dyntype[i] == mjtDyn.mjDYN_INTEGRATOR
            kind = "intvelocity" if is_integrated else "position"
            return kind, float(gain[0]), float(0.0 - bias[2])
        if gain[0] == -bias[2] != 0 == bias[1]:
            return "velocity", None, float(gain[0])
    if kinds == (mjtGain.mjGAIN_AFFINE, mjtBias.mjBIAS_NONE) and gain[0] == gain[1] == 0:
        return "damper", None, float(0.0 - gain[2])
    if kinds == (mjtGain.mjGAIN_FIXED, mjtBias.mjBIAS_NONE) and gain[0] == 1:
        return "motor", None, None
    return "general", None, None


def _torque_limits(model: mujoco.MjModel, i: int, kind: mjtTrn, gear: float) -> list[float] | None:
    """Return the least and greatest torque (N·m) or force (N) of an actuator on its joint, tendon
    or slider."""
    limits, target = [], int(model.actuator_trnid[i, 0])
    if model.actuator_forcelimited[i]:
        limits.append(np.sort(gear * model.actuator_forcerange[i]))
    kinds = (model.actuator_gaintype[i], model.actuator_biastype[i], model.actuator_dyntype[i])
    motor = (mjtGain.mjGAIN_FIXED, mjtBias.mjBIAS_NONE, mjtDyn.mjDYN_NONE)
    control = model.actuator_ctrladr[i]
    if kinds == motor and model.actuator_ctrllimited[control]:
        gain = model.actuator_gainprm[i, 0]
        limits.append(np.sort(gear * gain * model.actuator_ctrlrange[control]))
    if kind == mjtTrn.mjTRN_TENDON and model.tendon_actfrclimited[target]:
        limits.append(model.tendon_actfrcrange[target])
    if kind in JOINT_KINDS and model.jnt_actfrclimited[target]:
        limits.append(model.jnt_actfrcrange[target])
    if not limits:
        return None
    return [float(max(low for low, _ in limits)), float(min(high for _, high in limits))]
