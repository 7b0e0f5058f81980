"""Moves a robot's motors and writes down what they reach: the goals of its task."""

import csv
from copy import copy
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np
from mujoco import mjtBias, mjtGain, mjtJoint
from mujoco.batch import Batch

from mjfleet.errors import UserError
from mjfleet.sim.actuators import position_actuators
from mjfleet.tools.from_model.actuators import WHEEL_SPEED, WIDTH, resting_controls
from mjfleet.tools.from_model.control_ranges import ON_JOINT
from mjfleet.tools.from_model.robot import BALL, Robot, reach

TRIES = 256
"""How many random controls are held, each until the robot is at rest."""
CHUNK, CHUNKS = 0.1, 25
"""Seconds between looks at whether the robot is at rest, and how many looks there are at most."""
REST = 0.01
"""The robot is at rest if it changes by less than this share of its range between two looks."""
FEW = 32
"""With fewer goals at rest than this, those in motion count, too."""
LEAST = 0.01
"""Share of its range that a joint must cover for its position to be a goal. A control that is
nearer than this to an end of its range is at that end."""
MOTOR = int(mjtGain.mjGAIN_FIXED), int(mjtBias.mjBIAS_NONE)
LINEAR = int(mjtGain.mjGAIN_FIXED), int(mjtBias.mjBIAS_AFFINE)


@dataclass(frozen=True)
class Measured:
    """What goals are made of: a site's place, or positions of joints and speeds of others."""

    tool: str
    positions: list[int]
    speeds: list[int]

    def names(self, model: mujoco.MjModel) -> list[str]:
        """Return a name of each number: `qpos JOINT`, `qvel JOINT`, or `x`, `y`, `z`."""
        kinds = {"qpos": self.positions, "qvel": self.speeds}
        joints = [f"{kind} {model.joint(j).name}" for kind, ids in kinds.items() for j in ids]
        return ["x", "y", "z"] if self.tool else joints

    def ranges(self, model: mujoco.MjModel) -> np.ndarray:
        """Return how far each number can change, rad, m or rad/s."""
        widths = [float(np.ptp(reach(model, joint))) for joint in self.positions]
        both = np.array(widths + [2 * WHEEL_SPEED] * len(self.speeds))
        return np.full(3, float(model.stat.extent)) if self.tool else both

    def read(self, data: mujoco.MjData | Batch) -> np.ndarray:
        """Return the numbers, `(numbers,)`, or `(number of simulations, numbers)` of a batch."""
        if self.tool:
            return data.site_xpos[..., data.model.site(self.tool).id, :].copy()
        places = data.model.jnt_qposadr[self.positions], data.model.jnt_dofadr[self.speeds]
        return np.concatenate((data.qpos[..., places[0]], data.qvel[..., places[1]]), axis=-1)


def write_goals(robot: Robot, path: Path) -> int:
    """Write what the motors reach from `home`: a row each, those near `home` first.

    Returns:
        How many numbers a row has.

    Raises:
        UserError: they move nothing.
    """
    model = robot.model
    driven = _driven_joints(robot)
    turning = _turning_joints(robot) & driven
    measured = Measured(robot.tool, sorted(driven - turning), sorted(turning))
    rows = _sweep(_with_servos(model, measured), robot.data, measured)
    ranges = measured.ranges(model)
    moves = np.ptp(rows, axis=0) > LEAST * ranges if len(rows) else ranges < 0
    if robot.tool:
        moves[:] = moves.any()
    names = [
        name for name, does_move in zip(measured.names(model), moves, strict=True) if does_move
    ]
    if not names:
        raise UserError(
            f"its actuators do not move the site `{robot.tool}`."
            if robot.tool
            else "its actuators move no joint of the kinds hinge and slide."
        )
    home = measured.read(robot.data)
    order = np.square((rows - home) / ranges).sum(axis=1).argsort()
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerow(names)  # Quotes a comma in a name.
        np.savetxt(file, rows[order][:, moves], "%.4g", ",")
    return len(names)


def _driven_joints(robot: Robot) -> set[int]:
    """Return the hinges and slides that an actuator moves, also by a tendon or a crank."""
    model, data = robot.model, robot.data
    dofs = data.moment_colind[np.abs(data.actuator_moment) > 1e-9]
    joints = model.dof_jntid[dofs]
    return {*joints[model.jnt_type[joints] > BALL].tolist()}


def _turning_joints(robot: Robot) -> set[int]:
    """Return the hinges without limits whose speed is controlled, as those of wheels are."""
    model, on_joint = robot.model, np.isin(robot.model.actuator_trntype, ON_JOINT)
    is_speed = (model.actuator_biasprm[:, 2] < 0) & (model.actuator_biasprm[:, 1] == 0)
    joints = {*model.actuator_trnid[on_joint & is_speed, 0].tolist()}
    if robot.has_wheels:
        joints |= {j for limb in robot.stands for j in limb.joints} - {
            *model.actuator_trnid[on_joint & position_actuators(model), 0].tolist()
        }
    is_turning = (model.jnt_limited == 0) & (model.jnt_type == mjtJoint.mjJNT_HINGE)
    return joints & {*np.flatnonzero(is_turning).tolist()}


def _with_servos(model: mujoco.MjModel, measured: Measured) -> mujoco.MjModel:
    """Return a copy in which motors hold positions or speeds with the torques that they have.

    Joints that do not turn without limits are damped: they rest sooner, in the same places.
    """
    model = copy(model)
    can_damp = model.jnt_type > BALL
    can_damp[measured.speeds] = False
    dofs = model.jnt_dofadr[can_damp]
    model.dof_damping[dofs] += 5 * model.dof_M0[dofs]
    for i in np.flatnonzero(np.isin(model.actuator_trntype, ON_JOINT)).tolist():
        joint, control = int(model.actuator_trnid[i, 0]), int(model.actuator_ctrladr[i])
        gain, bias = model.actuator_gainprm[i], model.actuator_biasprm[i]
        gear, dof = float(model.actuator_gear[i, 0]), model.jnt_dofadr[joint]
        if model.jnt_type[joint] <= BALL or model.actuator_dyntype[i]:
            continue
        kinds = (model.actuator_gaintype[i], model.actuator_biastype[i])
        is_turning = joint in measured.speeds
        if kinds == MOTOR or (kinds == LINEAR and bias[1] == 0 and not is_turning):
            most = float(np.abs(gain[0] * model.actuator_ctrlrange[control]).max())
            if model.actuator_forcelimited[i]:
                most = min(most, float(model.actuator_forcerange[i].max()))
            ends = (-WHEEL_SPEED, WHEEL_SPEED) if is_turning else reach(model, joint)
            strength = most / (WHEEL_SPEED / 4 if is_turning else WIDTH) / abs(gear)
            model.actuator_biastype[i], gain[0] = mjtBias.mjBIAS_AFFINE, strength
            bias[1:3] = (0.0, -strength) if is_turning else (-strength, 0.0)
            model.actuator_forcelimited[i], model.actuator_forcerange[i] = True, (-most, most)
            model.actuator_ctrllimited[control] = True
            model.actuator_ctrlrange[control] = np.sort(gear * np.array(ends))
        if not is_turning:
            model.dof_damping[dof] += 2 * (gear**2 * gain[0] * model.dof_M0[dof]) ** 0.5
    return model


def _sweep(model: mujoco.MjModel, home: mujoco.MjData, measured: Measured) -> np.ndarray:
    """Hold random controls, from `home`; return what is then at rest, `(at most TRIES, numbers)`,
    or what is reached within CHUNKS where hardly anything comes to rest.

    Places of a tool where the robot touches something are left out, unless it does in `home`.
    """
    rest, has_range = resting_controls(model, home), model.actuator_ctrllimited[:, None] > 0
    low, high = np.where(has_range, model.actuator_ctrlrange, (-1.0, 1.0)).T
    # From an end of its range, a control moves to the other one alone.
    slack = LEAST * (high - low)
    least, most = -1.0 * (rest - low > slack), 1.0 * (high - rest > slack)
    rng = np.random.default_rng(0)
    shares = np.array([rng.uniform() * rng.uniform(least, most) for _ in range(TRIES)])
    tries = Batch(model, TRIES, nthread=1, persistent=True)
    tries.reset(keyframe=0, stage=mujoco.mjtStage.mjSTAGE_NONE.value)
    tries.ctrl[:] = rest + shares * np.where(shares > 0, high - rest, rest - low)
    near, steps = REST * measured.ranges(model), round(CHUNK / model.opt.timestep)
    contacts, now, moving = tries.ncon, measured.read(tries), np.arange(TRIES)
    for chunk in range(CHUNKS):
        before = now
        tries.step(moving, nstep=steps)
        now = measured.read(tries)
        if chunk > 1:
            moving = moving[~np.all(np.abs(now - before)[moving] < near, axis=1)]
    is_kept = (contacts <= home.ncon) | (not measured.tool)
    is_kept[moving] = False
    rows = now[is_kept]
    return rows if len(rows) >= FEW else np.concatenate((rows, now[moving]))
