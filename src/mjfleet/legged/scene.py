"""Completes a robot's model: the sensors that the environment reads, and the ground.

Runs where a model is compiled.
"""

import math
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from mujoco import mjtObj, mjtSensor

from mjfleet.env.model_file import urdf_hint
from mjfleet.errors import UserError
from mjfleet.legged.terrain import Terrain

HOME = "home"
"""The keyframe in which the robot stands."""
FLOOR = "floor"
GROUND, SKY, SUN = "mjfleet ground", "mjfleet sky", "mjfleet sun"
"""Names that a robot's own model hardly has."""
LEAST_UP = 0.999
"""Cosine of the largest tilt of the base in the pose `home`."""
FOOT_OFF = 0.03
"""How far a foot may be in or above the ground in the pose `home`, m."""
LONGEST_LEG = 10.0
"""How far from the ground and from `home` the right height of the base is sought, m."""
LONGEST_STEP = 0.05
"""Of the physics, s."""
ON_JOINT = int(mujoco.mjtTrn.mjTRN_JOINTINPARENT)
"""The last kind of transmission to a joint."""
FOUND = (1 << int(mujoco.mjtConDataField.mjCONDATA_FOUND), 0, 1)
"""A contact sensor's parameters: it counts contacts."""


def make_robot(
    path: Path, base: str, feet: tuple[str, ...], terrain: Terrain | None = None
) -> mujoco.MjModel:
    """Compile the model of a robot, on a plane or on rough ground, with the sensors it needs.

    Args:
        path: an MJCF file with the robot, and the ground or not.
        base: the body that the free joint moves.
        feet: geoms or bodies.
        terrain: rough ground.

    Raises:
        UserError: the file is no model, or lacks something: docs/tasks.md says what it must have.
    """
    if not feet or len({*feet}) < len(feet):
        raise UserError(f"feet is {feet!r}; it must be a tuple of different geoms or bodies.")
    if not isinstance(base, str):
        raise UserError(f"base is {base!r}; it must be the name of a body.")
    try:
        spec = mujoco.MjSpec.from_file(str(path))
        _check_keyframe(spec)
        sizes = _add_sensors(spec, base, feet)
        _add_ground(spec, terrain)
        model = spec.compile()
        _check_joints(model, base)
        for name, size in sizes.items():
            if (found := model.sensor(name).dim.item()) != size:
                raise UserError(f"the sensor {name!r} has {found} values; it must have {size}.")
        _check_home(model, feet, is_rough=terrain is not None)
    except (UserError, ValueError) as error:
        raise UserError(f"{path}: {error}{urdf_hint(path)}") from None
    return model


def _check_keyframe(spec: mujoco.MjSpec) -> None:
    """Raise UserError unless `home` has a position for each joint: MuJoCo would fill up zeros."""
    if (key := spec.key(HOME)) is None or not len(key.qpos):
        raise UserError(f"the model has no keyframe {HOME!r} with a qpos, to stand in.")
    widths = {mujoco.mjtJoint.mjJNT_FREE: 7, mujoco.mjtJoint.mjJNT_BALL: 4}
    needed = sum(widths.get(joint.type, 1) for joint in spec.joints)
    if len(key.qpos) != needed or not np.isfinite(key.qpos).all():
        raise UserError(
            f"the keyframe {HOME!r} has {len(key.qpos)} numbers in its qpos; it must have {needed} "
            "finite ones: 7 of a free joint, 1 of each hinge."
        )


def _check_joints(model: mujoco.MjModel, base: str) -> None:
    """Raise UserError unless the joints are a free one and hinges, each with its PD controller."""
    kinds = [mujoco.mjtJoint.mjJNT_FREE, *[mujoco.mjtJoint.mjJNT_HINGE] * (model.njnt - 1)]
    if (
        model.njnt < 2
        or model.jnt_type.tolist() != kinds
        or model.jnt_bodyid[0] != model.body(base).id
    ):
        raise UserError(f"the joints must be a free joint of the body {base!r}, and then hinges.")
    driven = [int(joint) for joint, _ in model.actuator_trnid]
    if driven != list(range(1, model.njnt)) or (model.actuator_trntype > ON_JOINT).any():
        names = ", ".join(model.joint(i).name for i in range(1, model.njnt))
        raise UserError(f"each hinge needs one actuator, in the order of the joints: {names}.")
    for i in range(model.nu):
        if wrong := _wrong_actuator(model, i):
            name = model.actuator(i).name or f"of {model.joint(i + 1).name}"
            raise UserError(
                f"the actuator {name} {wrong}; it must be of the kind <position>, with kp and kv "
                "above 0 (or damping in the joint), a forcerange, and no gear."
            )
    if not 0 < model.opt.timestep <= LONGEST_STEP:
        raise UserError(
            f"timestep is {model.opt.timestep} s; it must be above 0, at most {LONGEST_STEP} s."
        )


def _wrong_actuator(model: mujoco.MjModel, i: int) -> str | None:
    """Return what keeps an actuator from being a PD controller with a torque limit, or None."""
    kp, gear = model.actuator_gainprm[i, 0], model.actuator_gear[i, 0]
    kv = 0.0 - model.actuator_biasprm[i, 2]
    wrong = {
        "is no PD controller": kp != -model.actuator_biasprm[i, 1],
        f"has kp {kp:g}": kp <= 0,
        f"has kv {kv:g}, and its joint no damping": kv + model.dof_damping[6 + i] <= 0,
        "has no forcerange": not model.actuator_forcelimited[i],
        f"has gear {gear:g}": gear != 1,
    }
    return next((what for what, is_wrong in wrong.items() if is_wrong), None)


def _check_home(model: mujoco.MjModel, feet: tuple[str, ...], is_rough: bool) -> None:
    """Raise UserError if the pose `home` is tilted, out of the joints' ranges, or if the feet are
    far from the ground or pass through it."""
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, model.key(HOME).id)
    angles, (low, high) = data.qpos[7:], model.jnt_range[1:].T
    beyond = model.jnt_limited[1:] & ((angles < low - 0.01) | (angles > high + 0.01))
    for i in np.flatnonzero(beyond):
        raise UserError(
            f"in the keyframe {HOME!r}, {model.joint(i + 1).name} is at {angles[i]:.4g} rad; its "
            f"range is {low[i]:.4g} to {high[i]:.4g} rad. A keyframe's angles are always in rad, "
            'ranges in degrees unless the model has <compiler angle="radian"/>.'
        )
    mujoco.mj_forward(model, data)
    if (up := max(data.sensor("base_up").data[2], -1.0)) < LEAST_UP:  # Rounding may exceed 1.
        raise UserError(
            f"in the keyframe {HOME!r}, the base is tilted by {math.degrees(math.acos(up)):.0f} "
            "degrees; z of its body, and of the site 'base', must point up: (w 0 0 z) in `qpos`."
        )
    if not is_rough:
        _check_feet(model, data, feet)


def _check_feet(model: mujoco.MjModel, data: mujoco.MjData, feet: tuple[str, ...]) -> None:
    """Raise UserError unless each foot is within `FOOT_OFF` of the ground in this pose."""
    height = data.qpos[2].item()

    def touches(foot: str, height: float) -> bool:
        data.qpos[2] = height
        mujoco.mj_forward(model, data)
        return data.sensor(f"{foot}_contact").data[0] > 0

    if all(touches(f, height - FOOT_OFF) and not touches(f, height + FOOT_OFF) for f in feet):
        return
    where = f"in the keyframe {HOME!r} the base is at {height:.4g} m"
    right = []
    for foot in feet:
        low, high = -LONGEST_LEG, height + LONGEST_LEG
        for at, must in ((low, True), (high, False)):
            if touches(foot, at) != must:
                what = "touches nothing" if must else "still touches something"
                raise UserError(
                    f"{where}. At {at:.4g} m, {foot} {what}: contype and conaffinity "
                    "of the foot or of the ground are wrong."
                )
        while high - low > 1e-4:
            middle = (low + high) / 2
            low, high = (middle, high) if touches(foot, middle) else (low, middle)
        right.append(f"{foot} {low:.3f} m")
    raise UserError(
        f"{where}, and a foot is more than {FOOT_OFF} m in or above the ground. Feet just touch "
        f"it with the base at: {', '.join(right)}."
    )


def _add_sensors(spec: mujoco.MjSpec, base: str, feet: tuple[str, ...]) -> dict[str, int]:
    """Add the sensors that a model lacks, of the body `base` and of feet; return all their sizes.

    MuJoCo and MuJoCo Warp both compute all of these. Each costs time in every physics step.

    Raises:
        UserError: the model has no such body or foot.
    """
    has, sizes = {sensor.name for sensor in spec.sensors}, dict[str, int]()

    def add(name: str, kind: mjtSensor, **fields: Any) -> None:
        sizes[name] = 1 if kind == mjtSensor.mjSENS_CONTACT else 3
        if name not in has:
            spec.add_sensor(name=name, type=kind, **fields)

    body = spec.body(base)
    if body is None:
        raise UserError(
            f"the model has no body {base!r}, which is the robot's base: the attribute `base` of "
            "the environment's class names it."
        )
    if spec.site("base") is None:
        body.add_site(name="base", group=4)
    at_base = {"objtype": mjtObj.mjOBJ_SITE, "objname": "base"}
    add("imu_gyro", mjtSensor.mjSENS_GYRO, **at_base)
    add("base_linvel", mjtSensor.mjSENS_VELOCIMETER, **at_base)
    # The world's up in the base's frame; its negative is the projected gravity.
    world = {"objtype": mjtObj.mjOBJ_XBODY, "objname": "world"}
    in_base = {"reftype": mjtObj.mjOBJ_SITE, "refname": "base"}
    add("base_up", mjtSensor.mjSENS_FRAMEZAXIS, **world, **in_base)
    is_geom = {foot: spec.geom(foot) is not None for foot in feet}
    for foot in feet:
        if not is_geom[foot] and spec.body(foot) is None:
            raise UserError(
                f"the model has neither a geom nor a body {foot!r}, which is a foot: the attribute "
                "`feet` of the environment's class names them."
            )
        kind = mjtObj.mjOBJ_GEOM if is_geom[foot] else mjtObj.mjOBJ_XBODY
        add(f"{foot}_linvel", mjtSensor.mjSENS_FRAMELINVEL, objtype=kind, objname=foot)
    touched = {f"{foot}_contact": foot for foot in feet} | {"trunk_contact": base}
    for name, what in touched.items():
        kind = mjtObj.mjOBJ_GEOM if is_geom.get(what) else mjtObj.mjOBJ_BODY
        add(name, mjtSensor.mjSENS_CONTACT, reftype=kind, refname=what, intprm=FOUND)
    whole = {"reftype": mjtObj.mjOBJ_XBODY, "refname": base}  # The body with all below it.
    add("robot_contact", mjtSensor.mjSENS_CONTACT, **whole, intprm=FOUND)
    return sizes


def _add_ground(spec: mujoco.MjSpec, terrain: Terrain | None = None) -> None:
    """Put a robot on a plane, unless its model has a geom `floor`, or on rough ground instead.

    The ground has contype 1 and conaffinity 0, and leaves friction to the robot.
    """
    if spec.geom(FLOOR):
        if terrain is None:
            return
        spec.delete(spec.geom(FLOOR))
    elif any(geom.type == mujoco.mjtGeom.mjGEOM_PLANE for geom in spec.worldbody.geoms):
        raise UserError(f"the model has ground of its own, whose name must be {FLOOR!r}.")
    _set_view(spec, is_rough=terrain is not None)
    floor = spec.worldbody.add_geom(
        name=FLOOR, type=mujoco.mjtGeom.mjGEOM_PLANE, size=(0.0, 0.0, 0.05), material=GROUND,
        contype=1, conaffinity=0, priority=-1,
    )  # fmt: skip
    if terrain:
        terrain.put_into(spec, floor)


def _set_view(spec: mujoco.MjSpec, is_rough: bool) -> None:
    """Set colours, light and the size of the view."""
    height = float(spec.key(HOME).qpos[2])
    spec.stat.center, spec.stat.extent = (0.0, 0.0, 0.75 * height), 2.5 * height
    spec.stat.meansize = 0.15 * height
    view, light = spec.visual, spec.visual.headlight
    light.ambient, light.diffuse, light.specular = (
        ([0.3] * 3, [0.15] * 3, [0.0] * 3) if is_rough else ([0.4] * 3, [0.35] * 3, [0.1] * 3)
    )
    view.global_.offwidth, view.global_.offheight = 1280, 960
    view.quality.shadowsize = 4096
    image = {"width": 256, "height": 256}
    if not any(texture.type == mujoco.mjtTexture.mjTEXTURE_SKYBOX for texture in spec.textures):
        spec.add_texture(
            name=SKY, type=mujoco.mjtTexture.mjTEXTURE_SKYBOX, **image,
            builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
            rgb1=(0.75, 0.85, 0.95), rgb2=(0.35, 0.45, 0.6),
        )  # fmt: skip
    colours = ((0.72, 0.71, 0.69), (0.66, 0.65, 0.63)), ((0.85, 0.86, 0.88), (0.78, 0.8, 0.83))
    bright, dark = colours[not is_rough]
    spec.add_texture(
        name=GROUND, type=mujoco.mjtTexture.mjTEXTURE_2D, **image,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER, rgb1=bright, rgb2=dark,
    )  # fmt: skip
    material = spec.add_material(name=GROUND, texuniform=True)
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = GROUND
    material.texrepeat = (1.0, 1.0) if is_rough else (2.0, 2.0)
    if not is_rough:
        return
    material.specular = 0.1
    view.map.zfar = 200
    # Without a shadow, which at this size would be coarse.
    spec.worldbody.add_light(
        name=SUN, type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL, dir=(-0.5, 0.6, -0.6),
        diffuse=(0.45, 0.44, 0.42), specular=(0.1, 0.1, 0.1), castshadow=False,
    )  # fmt: skip
