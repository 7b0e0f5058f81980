"""Completes a robot's model by sensors and ground. Runs where a model is compiled."""

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from mujoco import mjtObj, mjtSensor

from mjfleet.errors import UserError
from mjfleet.legged.terrain import Terrain
from mjfleet.sim.actuators import position_actuators
from mjfleet.utils.name_pattern import name_pattern

HOME = "home"
"""The keyframe in which the robot stands."""
NO_HOME = f"the model has no keyframe {HOME!r} with a qpos of all joints, to stand in."
FREE = 7
"""Numbers of a free joint's position."""
FLOOR = "floor"
GROUND, SKY, SUN = "mjfleet ground", "mjfleet sky", "mjfleet sun"
"""Names that a robot's own model hardly has."""
FOOT_OFF = 0.03
"""How far a foot may be in or above the ground in the pose `home`, m."""
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
    try:
        spec = mujoco.MjSpec.from_file(str(path))
        numbers = len(key.qpos) if (key := spec.key(HOME)) else 0
        if numbers < FREE:
            raise UserError(NO_HOME)
        add_sensors(spec, base, feet)
        add_ground(spec, float(spec.key(HOME).qpos[2]), terrain)
        if terrain is None:
            # On a plane the solver needs fewer iterations from the smooth acceleration than from
            # the last one: of a walking Go1 2.1 for 3.4, and the slowest of 256 3.6 for 6.3.
            spec.option.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_WARMSTART)
        model = spec.compile()
        # These are of the last physics step, so that no contacts have to be found after it.
        for name in (*feet, "trunk", "robot"):
            model.sensor(f"{name}_contact").needstage[:] = mujoco.mjtStage.mjSTAGE_ACC
        if numbers != model.nq:  # MuJoCo fills up zeros.
            raise UserError(NO_HOME)
        check_joints(model, base)
        if terrain is None:
            _check_home(model, feet)
    except (UserError, ValueError) as error:
        raise UserError(f"{path}: {error}") from None
    return model


def check_joints(model: mujoco.MjModel, base: str) -> None:
    """Raise UserError unless the joints are a free one and hinges, each with its PD controller."""
    kinds = [mujoco.mjtJoint.mjJNT_FREE, *[mujoco.mjtJoint.mjJNT_HINGE] * (model.njnt - 1)]
    is_of_base = model.njnt > 1 and model.jnt_bodyid[0] == model.body(base).id
    if not is_of_base or model.jnt_type.tolist() != kinds:
        raise UserError(f"the joints must be a free joint of the body {base!r}, and then hinges.")
    hinges = range(1, model.njnt)
    on_joint = model.actuator_trntype <= int(mujoco.mjtTrn.mjTRN_JOINTINPARENT)
    if model.actuator_trnid[:, 0].tolist() != [*hinges] or not on_joint.all():
        names = ", ".join(model.joint(i).name for i in hinges)
        raise UserError(f"each hinge needs one actuator, in the order of the joints: {names}.")
    is_damped = model.dof_damping[6:] - model.actuator_biasprm[:, 2] > 0
    is_limited = (model.actuator_forcelimited == 1) & (model.actuator_gear[:, 0] == 1)
    right = position_actuators(model) & is_damped & is_limited
    for i in np.flatnonzero(~right):
        raise UserError(
            f"the actuator of {model.joint(i + 1).name} must be of the kind <position>, with kp "
            "and kv above 0 (or damping in the joint), a forcerange, and no gear."
        )


def _check_home(model: mujoco.MjModel, feet: tuple[str, ...]) -> None:
    """Raise UserError unless all feet just touch a plane in the pose `home`."""
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, model.key(HOME).id)
    height = data.qpos[2].item()
    for off, must in ((-FOOT_OFF, True), (FOOT_OFF, False)):
        data.qpos[2] = height + off
        mujoco.mj_forward(model, data)
        for foot in feet:
            if (data.sensor(f"{foot}_contact").data[0] > 0) != must:
                raise UserError(
                    f"in the keyframe {HOME!r}, {foot} is more than {FOOT_OFF} m "
                    f"{'above' if must else 'in'} the ground, with the base at {height:.4g} m. It "
                    "must just touch it, with the base upright; look at `qpos`, whose angles are "
                    "always in rad, and at contype and conaffinity."
                )


def add_sensors(spec: mujoco.MjSpec, base: str, feet: tuple[str, ...]) -> None:
    """Add the sensors that a model lacks, of the body `base` and of feet.

    MuJoCo and MuJoCo Warp both compute all of these. Each costs time in every physics step.

    Raises:
        UserError: the model has no such body or foot.
    """
    sensor_names = {sensor.name for sensor in spec.sensors}

    def add(name: str, kind: mjtSensor, **fields: Any) -> None:
        if name not in sensor_names:
            spec.add_sensor(name=name, type=kind, **fields)

    is_geom = {foot: spec.geom(foot) is not None for foot in feet}
    for name, attribute in ({base: "base"} | dict.fromkeys(feet, "feet")).items():
        if not is_geom.get(name) and spec.body(name) is None:
            raise UserError(
                f"the model has no body {name!r}, nor a geom as foot; the attribute `{attribute}` "
                "of the environment's class names it."
            )
    if spec.site("base") is None:
        spec.body(base).add_site(name="base", group=4)
    at_base = {"objtype": mjtObj.mjOBJ_SITE, "objname": "base"}
    add("imu_gyro", mjtSensor.mjSENS_GYRO, **at_base)
    add("base_linvel", mjtSensor.mjSENS_VELOCIMETER, **at_base)
    # The world's up in the base's frame; its negative is the projected gravity.
    world = {"objtype": mjtObj.mjOBJ_XBODY, "objname": "world"}
    in_base = {"reftype": mjtObj.mjOBJ_SITE, "refname": "base"}
    add("base_up", mjtSensor.mjSENS_FRAMEZAXIS, **world, **in_base)
    for foot in feet:
        kind = mjtObj.mjOBJ_GEOM if is_geom[foot] else mjtObj.mjOBJ_XBODY
        add(f"{foot}_linvel", mjtSensor.mjSENS_FRAMELINVEL, objtype=kind, objname=foot)
    # The world's geoms are the ground: a robot that touches itself in the air does not stand.
    ground = {"objtype": mjtObj.mjOBJ_BODY, "objname": "world", "intprm": FOUND}
    touched = {f"{foot}_contact": foot for foot in feet} | {"trunk_contact": base}
    for name, what in touched.items():
        kind = mjtObj.mjOBJ_GEOM if is_geom.get(what) else mjtObj.mjOBJ_BODY
        add(name, mjtSensor.mjSENS_CONTACT, reftype=kind, refname=what, **ground)
    whole = {"reftype": mjtObj.mjOBJ_XBODY, "refname": base}  # The body with all below it.
    add("robot_contact", mjtSensor.mjSENS_CONTACT, **whole, **ground)


def add_ground(spec: mujoco.MjSpec, height: float, terrain: Terrain | None = None) -> None:
    """Put a robot on a plane, unless its model has a geom `floor`, or on rough ground instead.

    The ground has contype 1 and conaffinity 0, and leaves friction to the robot. The view is for a
    robot of this height, m.
    """
    if spec.geom(FLOOR):
        if (body := spec.geom(FLOOR).parent.name) != "world":
            raise UserError(f"the geom {FLOOR!r} is in the body {body!r}, not in the worldbody.")
        if terrain is None:
            return
        spec.delete(spec.geom(FLOOR))
    elif level_planes(spec):
        raise UserError(f"the model has ground of its own, whose name must be {FLOOR!r}.")
    _set_view(spec, height, is_rough=terrain is not None)
    floor = spec.worldbody.add_geom(
        name=FLOOR, type=mujoco.mjtGeom.mjGEOM_PLANE, size=(0.0, 0.0, 0.05), material=GROUND,
        contype=1, conaffinity=0, priority=-1, group=0,
    )  # fmt: skip
    if terrain:
        terrain.put_into(spec, floor)


def level_planes(spec: mujoco.MjSpec) -> list[mujoco.MjsGeom]:
    """Return the planes of the worldbody that may be ground: those that are no walls."""
    kind = mujoco.mjtGeom.mjGEOM_PLANE
    if not (planes := [geom for geom in spec.worldbody.geoms if geom.type == kind]):
        return []
    _, x, y, _ = spec.compile().geom_quat[[plane.id for plane in planes]].T
    return [plane for plane, up in zip(planes, 1 - 2 * (x**2 + y**2), strict=True) if up > 0.7]


def _set_view(spec: mujoco.MjSpec, height: float, is_rough: bool) -> None:
    """Set colours, light and the size of the view."""
    spec.stat.center, spec.stat.extent = (0.0, 0.0, 0.75 * height), 2.5 * height
    spec.stat.meansize = 0.15 * height
    view, light = spec.visual, spec.visual.headlight
    light.ambient, light.diffuse, light.specular = [0.4] * 3, [0.3] * 3, [0.0] * 3
    view.global_.offwidth, view.global_.offheight = 1280, 960
    view.quality.shadowsize, view.map.zfar = 4096, 200
    image = {"width": 256, "height": 256}
    if not any(texture.type == mujoco.mjtTexture.mjTEXTURE_SKYBOX for texture in spec.textures):
        spec.add_texture(
            name=SKY, type=mujoco.mjtTexture.mjTEXTURE_SKYBOX, **image,
            builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
            rgb1=(0.75, 0.85, 0.95), rgb2=(0.35, 0.45, 0.6),
        )  # fmt: skip
    if spec.texture(GROUND) is None:
        spec.add_texture(
            name=GROUND, type=mujoco.mjtTexture.mjTEXTURE_2D, **image,
            builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER,
            rgb1=(0.72, 0.71, 0.69), rgb2=(0.66, 0.65, 0.63),
        )  # fmt: skip
        material = spec.add_material(name=GROUND, texuniform=True, specular=0.1)
        material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = GROUND
    if is_rough:  # A shadow of this size would be coarse.
        spec.worldbody.add_light(
            name=SUN, type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL, dir=(-0.5, 0.6, -0.6),
            diffuse=(0.45, 0.44, 0.42), specular=(0.1, 0.1, 0.1), castshadow=False,
        )  # fmt: skip


def joint_factors(env_class: Any, attribute: str, model: mujoco.MjModel) -> list[float]:
    """Return a factor of each joint: that of the last pattern that it matches, or 1."""
    joints = [model.joint(i).name for i in range(1, model.njnt)]
    values = [1.0] * len(joints)
    what = f"{env_class.__name__}.{attribute}"
    for pattern, factor in getattr(env_class, attribute).items():
        fits = name_pattern(pattern, what).search
        found = [i for i, joint in enumerate(joints) if fits(joint)]
        if not found:
            raise UserError(f"{what}: {pattern!r} matches no joint of {', '.join(joints)}.")
        for i in found:
            values[i] = float(factor)
    return values
