"""Gives ranges to the controls of a robot's own actuators, which a task needs for its actions."""

from contextlib import suppress

import numpy as np
from mujoco import mjtBias, mjtDyn, mjtGain, mjtTrn

from mjfleet.errors import UserError
from mjfleet.legged.scene import check_joints
from mjfleet.sim.actuators import position_actuators
from mjfleet.tools.from_model.actuators import WHEEL_SPEED, torque_guess, torque_of_file
from mjfleet.tools.from_model.robot import Robot, unused

ON_JOINT = int(mjtTrn.mjTRN_JOINT), int(mjtTrn.mjTRN_JOINTINPARENT)


def limit_controls(robot: Robot) -> None:
    """Give ranges to controls that have none, but not where mjfleet.legged gives a meaning to them:
    to positions what joints reach, to motors their torque limits."""
    if robot.feet:
        with suppress(UserError):
            check_joints(robot.model, robot.base)
            return
    lengths = np.array([data.actuator_length.copy() for data in robot.random_poses()])
    given, unknown = list[str](), list[str]()
    for i, actuator in enumerate(robot.spec.actuators):
        if robot.model.actuator_ctrllimited[robot.model.actuator_ctrladr[i]]:
            continue
        actuator.name = actuator.name or unused(f"actuator_{i}", robot.spec.actuators)
        if ends := _range(robot, i, (float(lengths[:, i].min()), float(lengths[:, i].max()))):
            actuator.ctrllimited, actuator.ctrlrange = True, ends
            given.append(f"`{actuator.name}` {ends[0]:.3g} to {ends[1]:.3g}")
        else:
            unknown.append(f"`{actuator.name}`")
    if given:
        robot.added.append(f"ranges of controls: {', '.join(given)}")
    if unknown:
        names = ", ".join(unknown)
        robot.questions.append(f"What are the ranges of the controls of {names}? They use -1 to 1.")
    robot.look()


def _range(robot: Robot, i: int, lengths: tuple[float, float]) -> tuple[float, float] | None:
    """Return the range of an actuator's control, None if the model does not tell it.

    `lengths` are the least and the greatest of the actuator: of a joint its position times `gear`.
    """
    model, half = robot.model, (lengths[1] - lengths[0]) / 2
    gain, dynamics = model.actuator_gainprm[i, 0], model.actuator_dyntype[i]
    kinds, most = (model.actuator_gaintype[i], model.actuator_biastype[i]), 0.0
    if dynamics == mjtDyn.mjDYN_MUSCLE:
        return 0.0, 1.0
    if dynamics == mjtDyn.mjDYN_INTEGRATOR:
        most = half  # The control is a speed: the whole range takes two seconds.
    elif position_actuators(model)[i] and half > 0:
        return lengths
    elif kinds == (mjtGain.mjGAIN_FIXED, mjtBias.mjBIAS_AFFINE):
        is_speed = model.actuator_biasprm[i, 2] < 0 == model.actuator_biasprm[i, 1]
        most = (WHEEL_SPEED if robot.has_wheels else half) * is_speed
    elif kinds == (mjtGain.mjGAIN_FIXED, mjtBias.mjBIAS_NONE):
        if model.actuator_forcelimited[i]:
            most = model.actuator_forcerange[i, 1] / abs(gain)
        elif model.actuator_trntype[i] in ON_JOINT:
            joint = int(model.actuator_trnid[i, 0])
            torque = torque_of_file(model, joint, i) or torque_guess(robot, joint)
            gear = np.abs(model.actuator_gear[i]).max()  # A ball's motor may turn about any axis.
            most = torque / (gear * abs(gain))
    return (-float(most), float(most)) if most else None
