"""Adds actuators to joints, with gains from masses and limits."""

from collections.abc import Mapping
from contextlib import suppress

import mujoco
import numpy as np

from mjfleet.errors import UserError
from mjfleet.legged.scene import HOME, check_joints
from mjfleet.sim.actuators import position_actuators
from mjfleet.tools.from_model.robot import BALL, Robot

WIDTH, SLIDE_WIDTH = 0.25, 0.01
"""Error at which a position actuator uses all of its torque or force, rad and m."""
WHEEL_SPEED = 20.0
"""Largest speed of a wheel, rad/s."""


def passive(model: mujoco.MjModel) -> np.ndarray:
    """Return which joints only springs move, as those of feet that slide, `(njnt,)`."""
    has_motor = np.isin(np.arange(model.njnt), model.actuator_trnid[:, 0])
    is_slide = model.jnt_type == mujoco.mjtJoint.mjJNT_SLIDE
    return is_slide & (model.jnt_stiffness > 0) & ~has_motor


def drive(robot: Robot) -> bool:
    """Add position actuators to joints, and velocity actuators to wheels, where there are none.

    Legs whose joints all have actuators, but not as mjfleet.legged needs them, get new ones.

    Returns:
        Whether there are new ones.
    """
    spec, model, assumed = robot.spec, robot.model, list[str]()
    old = {int(model.actuator_trnid[i, 0]): i for i in range(model.nactuator)}
    is_legged = robot.is_free and robot.has_legs
    if model.nu and not (is_legged and sorted(old) == robot.joints):
        return False
    with suppress(UserError):
        check_joints(model, robot.base)
        return False  # mjfleet.legged can use the actuators as they are.
    chosen, diagonal = _independent(robot), model.M_rowadr + model.M_rownnz - 1
    inertia = np.max([data.M[diagonal] for data in robot.random_poses()], axis=0)
    _delete_actuators(
        spec, {model.actuator(i).name: model.joint(j).name for j, i in old.items() if j in chosen}
    )
    for joint in chosen:
        name = model.joint(joint).name
        if not (torque := torque_of_file(model, joint, old.get(joint))):
            torque = torque_guess(robot, joint)
            assumed.append(f"`{name}` {torque:g}")
        new = spec.add_actuator(name=name, target=name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        new.forcelimited, new.forcerange = True, (-torque, torque)
        if robot.has_wheels and not model.jnt_limited[joint]:
            new.set_to_velocity(kv=4 * torque / WHEEL_SPEED)
        elif joint in old and position_actuators(model)[i := old[joint]]:
            kp, kv = model.actuator_gainprm[i, 0], -model.actuator_biasprm[i, 2]
            is_damped = kv + model.dof_damping[model.jnt_dofadr[joint]] > 0
            new.set_to_position(kp, **({"kv": kv} if is_damped else {"dampratio": 0.5}))
        else:
            is_slide = model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_SLIDE
            kp = torque / (SLIDE_WIDTH if is_slide else WIDTH)
            # The inertia of a robot on legs hardly changes; that of an arm that folds does.
            critical = 2 * (kp * inertia[model.jnt_dofadr[joint]]) ** 0.5
            new.set_to_position(kp, **({"dampratio": 0.5} if is_legged else {"kv": critical}))
    instead = f" in place of {len(old)} others" if old else ""
    speed = f", for up to {WHEEL_SPEED} rad/s of wheels" if robot.has_wheels else ""
    limbs = robot.stands if robot.has_wheels else []
    if turning := [j for limb in limbs for j in limb.joints[:-1] if not model.jnt_limited[j]]:
        names = ", ".join(f"`{model.joint(j).name}`" for j in turning)
        robot.questions.append(f"Are {names} wheels? They are driven as such, without ranges.")
    spec.key(HOME).ctrl = spec.key(HOME).act = []
    number = f"{len(chosen)} actuators" if len(chosen) > 1 else "1 actuator"
    robot.added.append(f"{number}{instead}, with gains from their limits{speed}")
    if assumed:
        torques = ", ".join(assumed)
        robot.questions.append(f"What torque (N·m, N) has each motor? From masses: {torques}.")
    followed = followers(model)
    others = [f"`{model.joint(j).name}`" for j in robot.joints if j not in {*chosen, *followed}]
    if others:
        robot.questions.append(f"Which joints have motors? {', '.join(others)} have none here.")
    if pairs := [
        f"`{model.joint(j).name}` follows `{model.joint(k).name}`" for j, k in followed.items()
    ]:
        lacks = "They have no motors of their own" if pairs[1:] else "It has no motor of its own"
        robot.questions.append(f"Is it right that {', '.join(pairs)}? {lacks}.")
    robot.look()
    return True


def _delete_actuators(spec: mujoco.MjSpec, names: Mapping[str, str]) -> None:
    """Delete all actuators; `names` says by which name their sensors find what replaces them."""
    for sensor in list(spec.sensors):
        if sensor.objtype == mujoco.mjtObj.mjOBJ_ACTUATOR:
            if sensor.objname in names:
                sensor.objname = names[sensor.objname]
            else:
                spec.delete(sensor)
    for actuator in list(spec.actuators):
        spec.delete(actuator)


def resting_controls(model: mujoco.MjModel, data: mujoco.MjData) -> np.ndarray:
    """Return the controls `(nu,)` that hold a pose: its positions, and 0 for other actuators."""
    is_integrated = model.actuator_dyntype == mujoco.mjtDyn.mjDYN_INTEGRATOR
    controls = np.zeros(model.nu)
    controls[model.actuator_ctrladr] = np.where(
        position_actuators(model) & ~is_integrated, data.actuator_length, 0.0
    )
    return controls


def followers(model: mujoco.MjModel) -> dict[int, int]:
    """Return the joints that equality constraints let follow another joint, with that joint."""
    is_joint = (model.eq_type == mujoco.mjtEq.mjEQ_JOINT) & (model.eq_active0 > 0)
    pairs = model.eq_obj1id[is_joint].tolist(), model.eq_obj2id[is_joint].tolist()
    return {joint: other for joint, other in zip(*pairs, strict=True) if other >= 0}


def _independent(robot: Robot) -> list[int]:
    """Return the joints that can have a motor: as many as the constraints let move independently,
    those near the base first, and none that follows another."""
    model, data, followed = robot.spec.compile(), mujoco.MjData(robot.model), followers(robot.model)
    model.opt.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_forward(model, data)
    is_equality = data.efc_type == mujoco.mjtConstraint.mjCNSTR_EQUALITY
    rows, chosen = list(data.efc_J.reshape(-1, model.nv)[is_equality]), list[int]()
    joints = {j for j in robot.joints if model.jnt_type[j] != BALL} - {*followed}
    joints -= {*np.flatnonzero(passive(model)).tolist()}
    depths = {j: limb.joints.index(j) for limb in robot.limbs for j in limb.joints}
    rank = np.linalg.matrix_rank(np.array(rows)) if rows else 0
    for joint in sorted(joints, key=lambda j: (depths[j], j)):
        tried = [*rows, np.eye(model.nv)[model.jnt_dofadr[joint]]]
        if (more := np.linalg.matrix_rank(np.array(tried), 1e-6)) > rank:
            rows, rank = tried, more
            chosen.append(joint)
    if not chosen:
        raise UserError("there is no joint that an actuator could move.")
    return sorted(chosen)


def torque_of_file(model: mujoco.MjModel, joint: int, actuator: int | None) -> float:
    """Return the largest torque that the file lets a joint's motor give, 0 if it says none."""
    if model.jnt_actfrclimited[joint] or actuator is None:
        return float(model.jnt_actfrcrange[joint, 1])
    most = model.actuator_forcerange[actuator, 1]
    if not model.actuator_forcelimited[actuator] and not position_actuators(model)[actuator]:
        most = model.actuator_gainprm[actuator, 0] * model.actuator_ctrlrange[actuator, 1]
    return float(abs(model.actuator_gear[actuator, 0]) * most)


def torque_guess(robot: Robot, joint: int) -> float:
    """Return the torque or force that a joint's motor needs, 2 g m r: twice what holds the mass m
    that it moves at the radius of gyration r, and for legs and wheels half of the robot."""
    model = robot.model
    mass = float(model.body_subtreemass[model.jnt_bodyid[joint]])
    radius = float(np.sqrt(model.dof_M0[model.jnt_dofadr[joint]] / mass))
    is_below = robot.is_free and any(joint in limb.joints for limb in robot.stands)
    load = max(mass, float(model.body_subtreemass[robot.root]) / 2) if is_below else mass
    return float(f"{2 * 9.81 * load * radius:.3g}")
