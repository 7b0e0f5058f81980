"""Adds actuators to joints, with gains from the inertia that they move and their limits."""

import mujoco
import numpy as np
from mujoco import mjtTrn

from mjfleet.errors import UserError
from mjfleet.tools.from_model.completed import Completed, count, grouped, short
from mjfleet.tools.from_model.home import leg_length
from mjfleet.tools.from_model.robot import HINGE, Robot

GRAVITY = 9.81
LARGEST_STRENGTH = 10
"""How many such robots a believable motor could lift."""
FASTEST_SWING = 250.0
"""Largest natural frequency of a position actuator, rad/s."""
WHEEL_SPEED = 2.0
"""Speed of a robot on wheels, m/s."""


def inertias_of(robot: Robot) -> dict[int, float]:
    """Return the inertia that each joint moves in the robot's pose, kg·m² or kg."""
    full = np.zeros((robot.model.nv, robot.model.nv))
    mujoco.mj_fullM(robot.model, robot.data, full)
    return {joint: float(full.diagonal()[robot.model.jnt_dofadr[joint]]) for joint in robot.joints}


def drive(done: Completed, is_legged: bool) -> None:
    """Add position actuators to joints, and velocity actuators to wheels, where there are none.

    mjfleet.legged needs position actuators with limits, one a joint and in their order: others are
    replaced by them.
    """
    spec, robot, model = done.spec, done.robot, done.robot.model
    if model.nu and not is_legged:
        limit_controls(done)
    if model.nu and (not is_legged or _are_controllers(robot)):
        return
    wheels = {limb.joints[-1]: limb for limb in robot.wheels}
    chosen = robot.joints if is_legged else robot.independent_joints()
    kept = {int(model.actuator_trnid[i, 0]): i for i in range(model.nu)}
    if not chosen:
        raise UserError("there is no joint that an actuator could move.")
    torques = _torques(done, chosen, kept)
    for actuator in list(spec.actuators):
        spec.delete(actuator)
    for key in spec.keys:
        key.ctrl = []
    for joint in chosen:
        name, torque = model.joint(joint).name, torques[joint]
        new = spec.add_actuator(name=name, target=name, trntype=mjtTrn.mjTRN_JOINT)
        new.forcelimited, new.forcerange = True, (-torque, torque)
        if joint in wheels:
            radius = max(float(robot.data.xanchor[joint, 2] - robot.lowest()), 1e-3)
            fastest = short(WHEEL_SPEED / radius)
            new.set_to_velocity(kv=short(torque * radius))  # All of it for an error of 1 m/s.
            new.ctrllimited, new.ctrlrange = True, (-fastest, fastest)
            continue
        kp, kv = _gains(robot, joint, torque, kept.get(joint), is_legged)
        new.set_to_position(kp=short(kp), kv=short(kv))
        if not is_legged:
            new.ctrllimited, new.ctrlrange = True, _range_of(model, joint)
    replaced = f" in place of {model.nu} others" if model.nu else ""
    if targets := len({*chosen} - {*wheels}):
        done.added.append(
            f"{count(targets, 'position actuator')}{replaced}: kp from the torque limit of the "
            "joint, kv from the inertia that it moves"
        )
    if wheels:
        speed = f"for up to {WHEEL_SPEED:g} m/s"
        done.added.append(f"{count(len(wheels), 'velocity actuator')} of wheels, {speed}")
    if others := [f"`{model.joint(j).name}`" for j in robot.joints if j not in chosen]:
        done.questions.append(
            f"Which joints have motors? {', '.join(others)} have none here: they follow from "
            "others, which are nearer to the base, or are how the base moves."
        )


def _torques(done: Completed, joints: list[int], kept: dict[int, int]) -> dict[int, float]:
    """Return the torque limit of each joint, the file's or one from the robot's mass."""
    robot, model = done.robot, done.robot.model
    size = float(model.body_subtreemass[robot.root] * model.stat.extent)
    assumed, unbelievable = dict[str, float](), dict[str, float]()
    found: dict[int, float] = {}
    for joint in joints:
        name, guess = model.joint(joint).name, _torque_guess(robot, joint)
        torque = _torque_of_file(model, joint, kept.get(joint))
        if torque > LARGEST_STRENGTH * GRAVITY * size:
            unbelievable[name], torque = torque, guess
        if not torque:
            assumed[name] = torque = guess
        found[joint] = short(torque)
    if assumed:
        done.questions.append(
            "What torque (N·m, or force in N) can each motor give? The file does not say; these "
            f"follow from the robot's mass: {grouped(assumed)}."
        )
    if unbelievable:
        done.questions.append(
            f"Are these torque limits of the file right: {grouped(unbelievable)}? They would lift "
            "ten such robots; limits from the robot's mass are used instead."
        )
    return found


def _gains(
    robot: Robot, joint: int, torque: float, old: int | None, is_legged: bool
) -> tuple[float, float]:
    """Return kp and kv: those of a position actuator that is replaced, or new ones.

    All of the torque is used for an error of 0.67 rad by legs, which yield, and 0.05 rad or 1 cm by
    others, unless that would swing faster than a step can follow. Legs swing, others do not.
    """
    model, inertia = robot.model, inertias_of(robot)[joint]
    width = 0.67 if is_legged else 0.05 if model.jnt_type[joint] == HINGE else 0.01
    kp = min(torque / width, inertia * FASTEST_SWING**2)
    kv = 2 * (0.5 if is_legged else 1.0) * np.sqrt(kp * inertia)
    if old is not None and is_controller(robot, old):
        kp, kv = model.actuator_gainprm[old, 0], -model.actuator_biasprm[old, 2] or kv
    return kp, kv


def _range_of(model: mujoco.MjModel, joint: int) -> tuple[float, float]:
    """Return a joint's range, and half a turn to each side of one that has none."""
    low, high = model.jnt_range[joint] if model.jnt_limited[joint] else (-np.pi, np.pi)
    return float(low), float(high)


def is_controller(robot: Robot, actuator: int) -> bool:
    model = robot.model
    kp = model.actuator_gainprm[actuator, 0]
    return kp > 0 and model.actuator_biasprm[actuator, 1] == -kp


def _are_controllers(robot: Robot) -> bool:
    """Return whether mjfleet.legged can use the file's actuators as they are."""
    model = robot.model
    dofs = model.jnt_dofadr[robot.joints]
    return (
        model.actuator_trnid[:, 0].tolist() == robot.joints
        and all(is_controller(robot, actuator) for actuator in range(model.nu))
        and bool((model.dof_damping[dofs] - model.actuator_biasprm[:, 2] > 0).all())
        and bool(
            (model.actuator_forcelimited == 1).all() and (model.actuator_gear[:, 0] == 1).all()
        )
    )


def _torque_of_file(model: mujoco.MjModel, joint: int, actuator: int | None) -> float:
    """Return the largest torque that the file lets a joint's motor give, 0 if it says none."""
    limits = [model.jnt_actfrcrange[joint, 1]] if model.jnt_actfrclimited[joint] else []
    if actuator is not None:
        gear = abs(model.actuator_gear[actuator, 0])
        if model.actuator_forcelimited[actuator]:
            limits.append(gear * model.actuator_forcerange[actuator, 1])
        is_motor = model.actuator_biastype[actuator] == int(mujoco.mjtBias.mjBIAS_NONE)
        if is_motor and model.actuator_ctrllimited[actuator]:
            gain = gear * model.actuator_gainprm[actuator, 0]
            limits.append(gain * model.actuator_ctrlrange[actuator, 1])
    return float(min(limits, default=0.0))


def _torque_guess(robot: Robot, joint: int) -> float:
    """Return the torque or force that a joint's motor needs: twice what holds its limb out
    straight, and for legs half the robot's weight times their length."""
    model, data = robot.model, robot.data
    body = int(model.jnt_bodyid[joint])
    below = [b for b in robot.bodies if body in _up(model, b)]
    masses = model.body_mass[below]
    arms = np.linalg.norm(data.xipos[below] - data.xanchor[joint], axis=1)
    if model.jnt_type[joint] != HINGE:
        arms = np.ones_like(arms)
    torque = 2 * GRAVITY * float(masses @ arms)
    weight = GRAVITY * float(model.body_subtreemass[robot.root])
    if robot.is_free and any(joint in limb.joints for limb in robot.feet):
        torque = max(torque, 0.5 * weight * leg_length(robot))
    for limb in robot.wheels:
        if joint == limb.joints[-1]:
            torque = 0.5 * weight * float(data.xanchor[joint, 2] - robot.lowest())
    return max(torque, 1e-3)


def _up(model: mujoco.MjModel, body: int) -> list[int]:
    found = [body]
    while found[-1]:
        found.append(int(model.body_parentid[found[-1]]))
    return found


def limit_controls(done: Completed) -> None:
    """Add a range to what controls actuators that have none."""
    spec, robot, model, names = done.spec, done.robot, done.robot.model, list[str]()
    for i in np.flatnonzero(model.actuator_ctrllimited == 0).tolist():
        actuator, joint = spec.actuators[i], int(model.actuator_trnid[i, 0])
        is_on_joint = model.actuator_trntype[i] <= int(mjtTrn.mjTRN_JOINTINPARENT)
        low, high = -1.0, 1.0
        if is_controller(robot, i):
            low, high = _range_of(model, joint) if is_on_joint else (-np.pi, np.pi)
        actuator.ctrllimited, actuator.ctrlrange = True, (low, high)
        names.append(f"`{actuator.name or i}` {low:.3g} to {high:.3g}")
    if names:
        done.questions.append(
            f"What are the ranges of the controls of {', '.join(names)}? The file has none."
        )
