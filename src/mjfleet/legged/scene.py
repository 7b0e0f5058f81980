"""Completes a robot's model: the sensors that the environment reads, and the ground.

Runs where a model is compiled.
"""

from pathlib import Path
from typing import Any

import mujoco
from mujoco import mjtObj, mjtSensor

from mjfleet.errors import UserError
from mjfleet.legged.terrain import Terrain

HOME = "home"
"""The keyframe in which the robot stands."""
FLOOR = "floor"
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
        if spec.key(HOME) is None:
            raise UserError(f"the model has no keyframe {HOME!r}, in which the robot stands.")
        _add_sensors(spec, base, feet)
        _add_ground(spec, terrain)
        model = spec.compile()
        _check_joints(model, base)
    except (UserError, ValueError) as error:
        raise UserError(f"{path}: {error}") from None
    return model


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
    if driven != list(range(1, model.njnt)):
        raise UserError("each hinge needs one actuator, in the order of the joints.")
    if (model.actuator_gainprm[:, 0] != -model.actuator_biasprm[:, 1]).any():
        raise UserError("the actuators must be of the kind <position>, with kp and kv.")


def _add_sensors(spec: mujoco.MjSpec, base: str, feet: tuple[str, ...]) -> None:
    """Add the sensors that a model lacks: of the body `base`, and of feet.

    MuJoCo and MuJoCo Warp both compute all of these. Each costs time in every physics step.

    Raises:
        UserError: the model has no such body or foot.
    """
    has = {sensor.name for sensor in spec.sensors}

    def add(name: str, kind: mjtSensor, **fields: Any) -> None:
        if name not in has:
            spec.add_sensor(name=name, type=kind, **fields)

    body = spec.body(base)
    if body is None:
        raise UserError(f"the model has no body {base!r}, which is the robot's base.")
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
            raise UserError(f"the model has neither a geom nor a body {foot!r}, which is a foot.")
        kind = mjtObj.mjOBJ_GEOM if is_geom[foot] else mjtObj.mjOBJ_XBODY
        add(f"{foot}_linvel", mjtSensor.mjSENS_FRAMELINVEL, objtype=kind, objname=foot)
    touched = {f"{foot}_contact": foot for foot in feet} | {"trunk_contact": base}
    for name, what in touched.items():
        kind = mjtObj.mjOBJ_GEOM if is_geom.get(what) else mjtObj.mjOBJ_BODY
        add(name, mjtSensor.mjSENS_CONTACT, reftype=kind, refname=what, intprm=FOUND)
    whole = {"reftype": mjtObj.mjOBJ_XBODY, "refname": base}  # The body with all below it.
    add("robot_contact", mjtSensor.mjSENS_CONTACT, **whole, intprm=FOUND)


def _add_ground(spec: mujoco.MjSpec, terrain: Terrain | None = None) -> None:
    """Put a robot on a plane, unless its model has a geom `floor`, or on rough ground instead.

    The ground has contype 1 and conaffinity 0, and leaves friction to the robot.
    """
    if spec.geom(FLOOR):
        if terrain is None:
            return
        spec.delete(spec.geom(FLOOR))
    _set_view(spec, is_rough=terrain is not None)
    floor = spec.worldbody.add_geom(
        name=FLOOR, type=mujoco.mjtGeom.mjGEOM_PLANE, size=(0.0, 0.0, 0.05), material="ground",
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
            name="sky", type=mujoco.mjtTexture.mjTEXTURE_SKYBOX, **image,
            builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
            rgb1=(0.75, 0.85, 0.95), rgb2=(0.35, 0.45, 0.6),
        )  # fmt: skip
    colours = ((0.72, 0.71, 0.69), (0.66, 0.65, 0.63)), ((0.85, 0.86, 0.88), (0.78, 0.8, 0.83))
    bright, dark = colours[not is_rough]
    spec.add_texture(
        name="ground", type=mujoco.mjtTexture.mjTEXTURE_2D, **image,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER, rgb1=bright, rgb2=dark,
    )  # fmt: skip
    material = spec.add_material(name="ground", texuniform=True)
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "ground"
    material.texrepeat = (1.0, 1.0) if is_rough else (2.0, 2.0)
    if not is_rough:
        return
    material.specular = 0.1
    view.map.zfar = 200
    # Without a shadow, which at this size would be coarse.
    spec.worldbody.add_light(
        name="sun", type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL, dir=(-0.5, 0.6, -0.6),
        diffuse=(0.45, 0.44, 0.42), specular=(0.1, 0.1, 0.1), castshadow=False,
    )  # fmt: skip
