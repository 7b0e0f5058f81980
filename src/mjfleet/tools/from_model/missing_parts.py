"""Adds to a robot's model what a task needs and it lacks, and notes what it has added."""

import mujoco
import numpy as np

from mjfleet.errors import UserError
from mjfleet.legged.scene import FLOOR, HOME, add_ground, add_sensors, level_planes
from mjfleet.tools.from_model.actuators import drive, resting_controls
from mjfleet.tools.from_model.control_ranges import limit_controls
from mjfleet.tools.from_model.home_pose import write_home
from mjfleet.tools.from_model.physics_step import longest_step
from mjfleet.tools.from_model.robot import Robot, unused


def add_missing_parts(robot: Robot, chosen: str | None = None) -> None:
    """Add to a robot's spec what a task needs and it lacks. Leave out the robots beside `chosen`.

    Raises:
        UserError: the model has no robot, or more than one, or nothing that can be driven.
        ValueError: the model does not compile.
    """
    for kind, elements in (("body", robot.spec.bodies[1:]), ("joint", robot.spec.joints)):
        for number, element in enumerate(elements):
            # Actuators and messages name them.
            element.name = element.name or unused(f"{kind}_{number}", elements)
    if chosen is not None:
        robot.keep_only(chosen)
    _add_scene(robot)
    robot.look()
    _let_it_stand(robot)
    _separate(robot)
    write_home(robot)
    is_new, key = drive(robot), robot.spec.key(HOME)
    if is_new or len(key.ctrl) != robot.model.nu:
        key.ctrl = resting_controls(robot.model, robot.data)
    _add_sensors(robot)
    robot.look()
    limit_controls(robot)
    option, fast = robot.spec.option, mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    if option.integrator != fast:
        option.integrator = fast
        robot.added.append("the integrator `implicitfast`, with which dampers allow longer steps")
    if (step := longest_step(robot)) != option.timestep:
        option.timestep = step
        robot.added.append(f"a physics step of {1000 * step:g} ms, which is short enough for it")
        robot.look()


def _add_scene(robot: Robot) -> None:
    """Add ground and light; keep one keyframe, `home` or the first."""
    spec = robot.spec
    chosen = spec.key(HOME) or next(iter(spec.keys), None)
    numbers = len(chosen.qpos) if chosen else 0  # MuJoCo fills up zeros when it compiles.
    model = spec.compile()
    size = float(model.stat.extent)
    plane = mujoco.mjtGeom.mjGEOM_PLANE
    ground = next(iter(level_planes(spec)), None)
    if floor := spec.geom(FLOOR):
        if floor.type != plane or model.body_weldid[model.geom_bodyid[floor.id]]:
            must = "a plane that does not move"
            raise UserError(f"the geom `{FLOOR}` is not the ground, {must}: give it another name.")
    elif ground:
        robot.added.append(f"the name `{FLOOR}` of the plane `{ground.name}`")
        ground.name = FLOOR
    else:
        add_ground(spec, 0.5 * size)
        robot.added.append(f"the ground, a plane named `{FLOOR}`")
    if others := [geom.name or geom.type.name[7:].lower() for geom in spec.worldbody.geoms
                  if geom.name != FLOOR and geom.contype | geom.conaffinity]:  # fmt: skip
        names = ", ".join(f"`{name}`" for name in others)
        robot.questions.append(f"Is what the file has beside the robot, {names}, needed? It stays.")
    if not any(list(body.lights) for body in spec.bodies):
        sun = mujoco.mjtLightType.mjLIGHT_DIRECTIONAL
        spec.worldbody.add_light(name="light", pos=(0, 0, 3 * size), dir=(0.2, 0.3, -1), type=sun)
        robot.added.append("a light")
    if chosen is None:
        return
    for key in list(spec.keys):
        if key.id != chosen.id:
            robot.questions.append(f"Is the keyframe `{key.name}` needed? It is left out.")
            spec.delete(key)
    if numbers not in (0, model.nq):
        raise UserError(
            f"the keyframe `{chosen.name}` has {numbers} numbers in qpos; there must be {model.nq}."
        )
    chosen.name = HOME


def _let_it_stand(robot: Robot) -> None:
    """Add a free joint to a robot that stands on legs or wheels."""
    if not (robot.stands or robot.arm() or robot.is_fixed) and len(robot.limbs) > 1:
        base = "is free" if robot.is_free else "is fixed to the world"
        where = "the file's keyframe" if robot.model.nkey else "joints at 0"
        robot.questions.append(
            f"Does it stand on legs? It does not with {where}, and `{robot.base}` {base}; a "
            f"keyframe `{HOME}` in the file, in which it stands, makes it a robot with legs."
        )
    if robot.is_free or not robot.stands or robot.model.body_weldid[robot.root]:
        return
    ends = ", ".join(f"`{robot.model.body(limb.end).name}`" for limb in robot.stands)
    if robot.is_fixed:
        robot.questions.append(f"Does the robot stand on {ends}? The file fixes it to the world.")
        return
    body = robot.spec.body(robot.base)
    body.add_freejoint(name=unused(f"{robot.base}_free", robot.spec.joints))
    if key := robot.spec.key(HOME):
        # The compiled model has resolved angles; other bodies' joints may come first.
        model, first = robot.model, int(robot.model.jnt_qposadr[robot.joints[0]])
        place = model.body_pos[robot.root], model.body_quat[robot.root]
        before, after = np.split(robot.data.qpos, [first])
        key.qpos, key.qvel = np.concatenate((before, *place, after)), []
    robot.added.append(f"a free joint of `{robot.base}`, since the robot stands on {ends}")
    robot.look()


def _separate(robot: Robot) -> None:
    """Let the robot's geoms touch everything but each other, unless the file says what touches.

    Rays see what is in group 0: the ground, but not a robot that stands on it.
    """
    spec, roots = robot.spec, robot.model.body_rootid[robot.model.geom_bodyid]
    geoms = [geom for geom in spec.geoms if roots[geom.id] == robot.root]
    seen = [geom for geom in geoms if geom.group == 0]
    if robot.stands and seen:
        for geom in seen:
            geom.group = 2
        robot.added.append("`group` 2 of the robot's geoms, so that rays hit the ground and not it")
    geoms = [geom for geom in geoms if geom.contype | geom.conaffinity]
    bits = {(geom.contype, geom.conaffinity) for geom in geoms}
    if bits == {(1, 1)} and not (list(spec.excludes) or list(spec.pairs)):
        for geom in geoms:
            geom.contype = 0
        robot.added.append("`contype` 0 of the robot's geoms, so that it does not touch itself")
    elif bits != {(0, 1)}:
        robot.questions.append("Which of its own parts may it touch? Here, those of the file.")


def _add_sensors(robot: Robot) -> None:
    """Name what the environment measures at, and add its sensors."""
    spec, before = robot.spec, {sensor.name for sensor in robot.spec.sensors}
    if robot.is_free:
        robot.feet = [_foot(robot, limb.low) for limb in robot.stands if robot.has_legs]
        add_sensors(spec, robot.base, tuple(robot.feet))
        if robot.feet and (above := [f"`{robot.model.body(one).name}`" for one in robot.above]):
            others = ", ".join(above)
            robot.questions.append(f"May {others} touch the ground, too? They are no feet here.")
    elif arm := robot.arm():
        robot.tool = _tool(robot, int(robot.model.jnt_bodyid[arm[-1]]))
        kind, site = mujoco.mjtSensor.mjSENS_FRAMEPOS, mujoco.mjtObj.mjOBJ_SITE
        name = f"{robot.tool}_position"
        if name not in before:
            spec.add_sensor(name=name, type=kind, objtype=site, objname=robot.tool)
    if names := [f"`{sensor.name}`" for sensor in spec.sensors if sensor.name not in before]:
        robot.added.append(f"sensors: {', '.join(names)}")


def _foot(robot: Robot, low: list[int]) -> str:
    """Return the name of the body on which a limb stands, or of its one geom that is lowest."""
    body = robot.model.body(robot.model.geom_bodyid[low[0]])
    solid = [geom for geom in robot.spec.body(body.name).geoms if geom.contype | geom.conaffinity]
    if len(low) > 1 or len(solid) == 1:
        return body.name
    geom = next(geom for geom in solid if geom.id == low[0])
    geom.name = geom.name or unused(f"{body.name}_foot", robot.spec.geoms)
    return geom.name


def _tool(robot: Robot, last: int) -> str:
    """Return the site that an arm brings somewhere: the last of its hand, or a new one there."""
    model = robot.model
    hand = np.flatnonzero(model.body_weldid == last).tolist()
    body = model.body(hand[-1])
    sites = [model.site(i).name for i in range(model.nsite) if model.site_bodyid[i] in hand]
    if not (sites := [name for name in sites if name]):
        sites = [unused(f"{body.name}_tool", robot.spec.sites)]
        place = body.ipos if len(hand) == 1 else (0, 0, 0)
        robot.spec.body(body.name).add_site(name=sites[0], pos=place, group=4)
        robot.added.append(f"the site `{sites[0]}`, in the last body")
    robot.questions.append(f"Is the site `{sites[-1]}` what the arm should bring somewhere?")
    return sites[-1]
