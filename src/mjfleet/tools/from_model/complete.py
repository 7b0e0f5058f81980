"""Adds to a robot's model what a task needs and it lacks, and notes what it has added."""

import mujoco
import numpy as np
from mujoco import mjtObj, mjtSensor

from mjfleet.legged.scene import FLOOR, HOME, add_ground, add_sensors
from mjfleet.tools.from_model.actuators import drive, inertias_of, is_controller
from mjfleet.tools.from_model.completed import Completed, count, short
from mjfleet.tools.from_model.home import pose_home
from mjfleet.tools.from_model.robot import HINGE, TOOLS, Robot
from mjfleet.tools.from_model.source import Source

TIMESTEPS = (0.005, 0.002, 0.001, 0.0005)
"""Physics steps to try where the file names none, s."""
GROUNDS = (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_HFIELD)


def complete(source: Source) -> Completed:
    """Add what is missing to a source's spec.

    Raises:
        UserError: the model has no robot, or more than one.
    """
    spec = source.spec
    done = Completed(spec, Robot(spec.compile()))
    _name_elements(done)
    if source.is_urdf:
        _tidy_urdf(done)
    done.robot = Robot(spec.compile(), done.pose_of_file())
    _let_it_stand(done, source.is_fixed)
    _use_bits(done)
    _separate(done)
    _add_armature(done)
    is_legged = _is_for_legged(done)
    home = pose_home(done)
    done.robot = Robot(done.robot.model, home)
    drive(done, is_legged)
    _add_home(done, home)
    done.robot = Robot(spec.compile(), home)
    if arm := done.robot.arm():
        _add_tool(done, arm)
    _add_view(done)
    _add_sensors(done, is_legged)
    _choose_step(done)
    done.robot = Robot(spec.compile(), home)
    return done


def _name_elements(done: Completed) -> None:
    """Name bodies and joints without names: actuators and messages name them."""
    spec, unnamed = done.spec, 0
    for kind, elements in (("body", spec.bodies[1:]), ("joint", spec.joints)):
        taken = {element.name for element in elements}
        for number, element in enumerate(elements):
            if not element.name:
                name = f"{kind}_{number}"
                while name in taken:
                    name += "_"
                element.name, unnamed = name, unnamed + 1
                taken.add(name)
    if unnamed:
        done.added.append(f"{count(unnamed, 'name')} of bodies and joints that had none")


def _tidy_urdf(done: Completed) -> None:
    """Take away the mass that MuJoCo gives to fixed links without any; put shapes to collide with
    into group 3 where a link has others to look at."""
    model, guessed = done.robot.model, list[str]()
    for body in done.spec.bodies[1:]:
        if not body.explicitinertial and body.geoms:
            if not body.joints:
                for geom in body.geoms:
                    geom.density = geom.mass = 0.0
            else:
                guessed.append(f"`{body.name}` ({model.body(body.name).mass[0]:.3g} kg)")
        if any(geom.contype | geom.conaffinity == 0 for geom in body.geoms):
            for geom in body.geoms:
                if geom.contype | geom.conaffinity:
                    geom.group = 3
    if guessed:
        done.questions.append(
            f"What are the masses of {', '.join(guessed)}? The file has none; these follow from "
            "their shapes, with 1000 kg/m³."
        )


def _let_it_stand(done: Completed, is_fixed: bool) -> None:
    """Add a free joint to a robot that stands on legs or wheels."""
    robot, spec = done.robot, done.spec
    carried = robot.feet or robot.wheels
    if robot.is_free or robot.model.body_weldid[robot.root] or not carried:
        return
    ends = ", ".join(f"`{robot.model.body(limb.end).name}`" for limb in carried)
    if is_fixed or not robot.stands():
        fixed = "The file fixes the base to the world." if is_fixed else "Its base is fixed."
        done.questions.append(
            f"Does the robot stand on {ends}? {fixed} If it stands, add `<freejoint/>` to the body "
            f"`{done.base}`, and make the task anew."
        )
        return
    spec.body(done.base).add_freejoint(name=f"{done.base}_free")
    place = [*spec.body(done.base).pos, 1.0, 0.0, 0.0, 0.0]
    for key in spec.keys:
        key.qpos = [*place, *key.qpos]
        key.qvel = [*[0.0] * 6, *key.qvel] if len(key.qvel) else []
    done.robot = Robot(spec.compile(), done.pose_of_file())
    done.added.append(f"a free joint of the body `{done.base}`, since the robot stands on {ends}")


def _use_bits(done: Completed) -> None:
    """Let feet touch the ground by contype and conaffinity instead of by pairs, whose friction is
    their own, and let the ground leave friction to them, so that it can be varied."""
    spec, robot = done.spec, done.robot
    if not (robot.is_free and robot.feet):
        return
    for ground in (geom for geom in spec.worldbody.geoms if geom.type in GROUNDS):
        for pair in list(spec.pairs):
            names = {pair.geomname1, pair.geomname2}
            if ground.name in names and (geom := spec.geom(*names - {ground.name})):
                geom.contype, geom.conaffinity, geom.friction = 0, 1, pair.friction[::2]
                geom.condim = pair.condim
                ground.contype, ground.conaffinity = 1, 0
                spec.delete(pair)
                done.added.append(f"`conaffinity` 1 of `{geom.name}`, in place of a `<pair>`")
        if ground.priority >= 0:
            ground.priority = -1
            done.added.append("`priority` -1 of the ground: friction is that of the feet")
    done.robot = Robot(spec.compile(), done.pose_of_file())
    feet = {geom for limb in done.robot.feet for geom in done.robot.low_geoms(limb.end)}
    smooth = [geom for geom in spec.geoms if geom.id in feet and geom.condim < 3]
    for geom in smooth:
        geom.condim = 3
    if smooth:
        done.added.append(
            f"`condim` 3 of {count(len(smooth), 'geom')} of feet: without, these slide"
        )
    done.robot = Robot(spec.compile(), done.pose_of_file())


def _separate(done: Completed) -> None:
    """Let the robot's geoms touch everything but each other, unless the file says what touches."""
    spec, robot = done.spec, done.robot
    names = {robot.model.body(body).name for body in robot.bodies}
    geoms = [geom for body in spec.bodies if body.name in names for geom in body.geoms]
    geoms = [geom for geom in geoms if geom.contype | geom.conaffinity]
    bits = {(geom.contype, geom.conaffinity) for geom in geoms}
    if bits <= {(0, 1)}:
        return
    if len(bits) > 1 or len(spec.excludes) or len(spec.pairs):
        done.questions.append(
            "Which parts of the robot may touch each other? The file has rules of its own "
            "(`contype`, `conaffinity`, `<exclude>`, `<pair>`), which stay; contacts of the robot "
            "with itself cost time."
        )
        return
    for geom in geoms:
        geom.contype, geom.conaffinity = 0, 1
    done.added.append(
        "`contype` 0 and `conaffinity` 1 of the robot's geoms, so that it touches other things, "
        "but not itself"
    )


def _add_armature(done: Completed) -> None:
    """Add a twentieth of the inertia that it moves to each joint without armature."""
    spec, robot = done.spec, done.robot
    inertias, light = inertias_of(robot), 0
    for joint in robot.joints:
        if not robot.model.dof_armature[robot.model.jnt_dofadr[joint]]:
            spec.joint(robot.model.joint(joint).name).armature = short(0.05 * inertias[joint])
            light += 1
    if light:
        done.added.append(
            f"`armature` of {count(light, 'joint')}, a twentieth of the inertia that each moves; "
            "motors with gears have more (rotor inertia times the squared ratio)"
        )
    done.robot = Robot(spec.compile(), robot.data.qpos)


def _is_for_legged(done: Completed) -> bool:
    """Return whether mjfleet.legged fits: feet, and after a free joint hinges with a motor each."""
    robot, model = done.robot, done.robot.model
    if not (robot.is_free and robot.feet):
        return False
    why = ""
    driven = robot.driven_joints() if model.nu else set(robot.independent_joints())
    if robot.is_closed:
        why = "it has closed loops"
    elif any(model.jnt_type[joint] != HINGE for joint in robot.joints):
        why = "it has other joints than hinges"
    elif len(robot.joints) + 1 != model.njnt or model.nu not in (0, len(driven)):
        why = "other things than its joints move"
    elif driven != {*robot.joints}:
        why = "some of its joints have no actuator"
    if why:
        done.questions.append(
            f"The robot has feet, but {why}, which `mjfleet.legged` does not have: it learns to "
            "stand. What should it do instead?"
        )
    return not why


def _add_home(done: Completed, home: np.ndarray) -> None:
    """Write the keyframe `home`, in which position actuators hold the pose."""
    spec = done.spec
    key = done.key_of_file() or spec.add_key()
    if key.name != HOME:
        if key.name:
            done.added.append(f"the name `{HOME}` of the keyframe `{key.name}`")
        key.name = HOME
    given = np.array(key.ctrl)
    key.qpos, key.qvel, key.act, key.ctrl = home, [], [], []
    robot = Robot(spec.compile(), home)
    model = robot.model
    holds = [is_controller(robot, actuator) for actuator in range(model.nu)]
    key.ctrl = given if len(given) == model.nu else robot.data.actuator_length * holds


def _add_tool(done: Completed, arm: list[int]) -> None:
    """Choose the site that an arm brings to a target, or add one."""
    spec, robot, model = done.spec, done.robot, done.robot.model
    hand = robot.fixed_to(int(model.jnt_bodyid[arm[-1]]))
    sites = [model.site(i).name for i in range(model.nsite) if model.site_bodyid[i] in hand]
    named = [name for name in sites if TOOLS.search(name)] or [name for name in sites if name]
    if named:
        done.tool = named[-1]
        others = f" The model also has {', '.join(named[:-1])}." if len(named) > 1 else ""
        done.questions.append(
            f"Is the site `{done.tool}` what the arm should bring somewhere?{others}"
        )
        return
    body = hand[-1]
    where = np.zeros(3) if len(hand) > 1 else model.body_ipos[body]
    done.tool = "tool" if spec.site("tool") is None else "tool_point"
    spec.body(model.body(body).name).add_site(name=done.tool, pos=where, group=4)
    done.added.append(f"the site `{done.tool}` of the body `{model.body(body).name}`")
    done.questions.append(
        f"Where is the point that the arm should bring somewhere? The site `{done.tool}` is at the "
        f"{'frame' if len(hand) > 1 else 'centre of mass'} of the last body."
    )


def _add_view(done: Completed) -> None:
    """Add ground and light."""
    spec, robot = done.spec, done.robot
    grounds = [geom for geom in spec.worldbody.geoms if geom.type in GROUNDS]
    if not grounds:
        add_ground(spec, max(float(robot.height), 0.5 * robot.model.stat.extent))
        spec.geom(FLOOR).pos = (
            0.0,
            0.0,
            0.0 if robot.is_free else short(min(0.0, robot.lowest())),
        )
        done.added.append(f"the ground, a plane named `{FLOOR}`")
    elif spec.geom(FLOOR) is None and done.robot.feet:
        done.added.append(f"the name `{FLOOR}` of the geom `{grounds[0].name}`")
        grounds[0].name = FLOOR
    if not any(list(body.lights) for body in spec.bodies):
        high = 3 * max(1.0, float(robot.model.stat.extent))
        spec.worldbody.add_light(
            name="light", pos=(0, 0, high), dir=(0.2, 0.3, -1), diffuse=(0.5, 0.5, 0.48),
            type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,
        )  # fmt: skip
        done.added.append("a light")


def _add_sensors(done: Completed, is_legged: bool) -> None:
    """Add the sensors that the environment reads."""
    spec, robot = done.spec, Robot(done.spec.compile(), done.robot.data.qpos)
    before = {sensor.name for sensor in spec.sensors}
    if is_legged:
        for limb in robot.feet:
            low = robot.low_geoms(limb.end)[0]
            geom = next(geom for geom in spec.geoms if geom.id == low)
            geom.name = geom.name or f"{robot.model.body(limb.end).name}_foot"
        robot = Robot(spec.compile(), robot.data.qpos)
        done.feet = robot.foot_names()
        add_sensors(spec, done.base, tuple(done.feet))
    elif done.tool and spec.sensor(f"{done.tool}_position") is None:
        at = {"objtype": mjtObj.mjOBJ_SITE, "objname": done.tool}
        spec.add_sensor(name=f"{done.tool}_position", type=mjtSensor.mjSENS_FRAMEPOS, **at)
    elif robot.is_free:
        add_sensors(spec, done.base, ())
    if names := [f"`{each.name}`" for each in spec.sensors if each.name not in before]:
        done.added.append(f"sensors: {', '.join(names)}")


def _choose_step(done: Completed) -> None:
    """Choose an integrator that damps well and a step at which the robot is stable."""
    spec, robot = done.spec, done.robot
    fast = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    if spec.option.integrator != fast:
        spec.option.integrator = fast
        done.added.append("the integrator `implicitfast`, with which dampers allow longer steps")
    own = spec.option.timestep
    tried = TIMESTEPS if own == 0.002 else [own, *(t for t in TIMESTEPS if t < own)]
    if robot.is_closed and own == 0.002:
        tried = TIMESTEPS[1:]
    for timestep in tried:
        spec.option.timestep = timestep
        if _is_stable(spec.compile(), robot.data.qpos):
            break
    else:
        done.questions.append(
            "Are masses, inertias and gains right? With random controls, the simulation diverges "
            "at each step that was tried."
        )
    if spec.option.timestep != own:
        done.added.append(f"a step of {spec.option.timestep:g} s instead of {own:g} s")


def _is_stable(model: mujoco.MjModel, home: np.ndarray) -> bool:
    """Return whether two seconds of random controls do not diverge."""
    data, rng = mujoco.MjData(model), np.random.default_rng(0)
    data.qpos = home
    low, high = np.where(model.actuator_ctrllimited[:, None], model.actuator_ctrlrange, (-1, 1)).T
    mujoco.mj_forward(model, data)
    for step in range(round(2 / model.opt.timestep)):
        if step % 10 == 0:
            data.ctrl = rng.uniform(low, high)
        mujoco.mj_step(model, data)
        if not np.isfinite(data.qvel).all() or np.abs(data.qvel).max(initial=0.0) > 1000:
            return False
    return not any(warning.number for warning in data.warning)
