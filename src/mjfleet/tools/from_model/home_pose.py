"""Writes the keyframe `home`: legs bent, constraints satisfied, on the ground."""

import mujoco
import numpy as np
from mujoco.minimize import Verbosity, least_squares

from mjfleet.errors import UserError
from mjfleet.legged.scene import FLOOR, HOME
from mjfleet.tools.from_model.actuators import passive
from mjfleet.tools.from_model.robot import BALL, Limb, Robot

ON_TWO, ON_MORE = 0.95, 0.7
"""Height of the hips above the feet, by that of straight legs, of robots with two legs and with
more: as a G1 and a Go1 begin."""
LEAST_OFF = 0.01
"""How far from its place a foot may be after legs were bent, by the height of the hips."""
LEAST_OPEN = 1e-3
"""How far a constraint may be from being satisfied, rad or m."""


def write_home(robot: Robot) -> None:
    """Write the pose `home`, the file's, or all joints at 0 or the nearest end of their range and
    legs bent, with these on the ground, and others that move freely a little above it.

    Raises:
        UserError: no pose near it satisfies the constraints; the message names one.
    """
    spec, model, key = robot.spec, robot.model, robot.spec.key(HOME)
    pose = robot.data.qpos.copy()
    if key is None:
        key = spec.add_key(name=HOME)
        limited = (model.jnt_limited > 0) & (model.jnt_type > BALL)
        places = model.jnt_qposadr[limited]
        pose[places] = np.clip(pose[places], *model.jnt_range[limited].T)
        robot.added.append(f"the keyframe `{HOME}`")
        joints = "joints are at 0 or a limit"
        if robot.is_free and robot.has_legs:
            is_bent = _bend_legs(robot, pose)
            joints = f"{'legs are bent, other' if is_bent else 'bend legs;'} {joints}"
        robot.questions.append(f"In which pose does it begin? In `{HOME}`, {joints}.")
    if model.neq and (moved := _satisfy_constraints(robot, pose)) > LEAST_OPEN:
        robot.added.append(f"up to {moved:.3f} rad or m to `{HOME}`, as equality constraints need")
    key.qpos = pose
    robot.look()
    if not robot.is_free:
        floor = spec.geom(FLOOR)
        floor.pos = (*floor.pos[:2], floor.pos[2] + min(0.0, robot.lowest))
    elif robot.stands or robot.lowest < 0:
        gap = 0.0 if robot.has_legs else 0.005
        pose[model.jnt_qposadr[model.body_jntadr[robot.root]] + 2] += gap - robot.lowest
        if abs(robot.lowest) > 0.01:
            robot.added.append(f"{-robot.lowest:+.3f} m to the height of the robot in `{HOME}`")
    key.qpos = np.round(pose, 4)
    robot.look()


def _satisfy_constraints(robot: Robot, pose: np.ndarray) -> float:
    """Change `pose` as little as equality constraints and limits need; return by how much at most.

    Raises:
        UserError: they cannot all be satisfied.
    """
    model, data, before = robot.spec.compile(), mujoco.MjData(robot.model), pose.copy()
    model.opt.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    data.qpos[:], kinds, rows = pose, mujoco.mjtConstraint, np.zeros(0, bool)
    wanted = kinds.mjCNSTR_EQUALITY, kinds.mjCNSTR_LIMIT_JOINT, kinds.mjCNSTR_LIMIT_TENDON
    for _ in range(100):  # Newton's method, by the smallest changes.
        mujoco.mj_fwdPosition(model, data)
        rows = np.isin(data.efc_type, wanted)
        if not rows.any() or np.abs(data.efc_pos[rows]).max() < 1e-6:
            break
        jacobian = data.efc_J.reshape(-1, model.nv)[rows]
        change = np.linalg.lstsq(jacobian, -data.efc_pos[rows], rcond=1e-6)[0]
        mujoco.mj_integratePos(model, data.qpos, change / max(1.0, np.abs(change).max() / 0.3), 1)
    is_open = rows & (data.efc_type == kinds.mjCNSTR_EQUALITY) & (np.abs(data.efc_pos) > LEAST_OPEN)
    for i in data.efc_id[is_open].tolist():
        equality = robot.spec.equalities[i]
        names = " and ".join(f"`{name}`" for name in (equality.name1, equality.name2) if name)
        kind = mujoco.mjtEq(model.eq_type[i]).name.removeprefix("mjEQ_").lower()
        raise UserError(
            f"no pose near the initial one satisfies the constraint <{kind}> of {names}; add a "
            f"keyframe `{HOME}` to the file."
        )
    pose[:] = data.qpos
    return float(np.abs(pose - before).max())


def _bend_legs(robot: Robot, pose: np.ndarray) -> bool:
    """Bend legs in `pose`, so that feet stay below the places where they are with joints at 0.

    Returns:
        False, and `pose` is as it was, if joints have no limits, or theirs do not tell how knees
        bend, or loops are closed.
    """
    model, data, is_passive = robot.model, mujoco.MjData(robot.model), passive(robot.model)
    if robot.is_closed or not all(model.jnt_limited[limb.joints].all() for limb in robot.stands):
        return False
    share, bent = ON_TWO if len(robot.stands) == 2 else ON_MORE, pose.copy()
    for limb in robot.stands:
        joints = [joint for joint in limb.joints if not is_passive[joint]]
        places, (low, high) = model.jnt_qposadr[joints], model.jnt_range[joints].T

        def foot(
            angles: np.ndarray, flat: float, limb: Limb = limb, places: np.ndarray = places
        ) -> np.ndarray:
            data.qpos[:] = pose
            data.qpos[places] = angles
            mujoco.mj_kinematics(model, data)
            place = data.geom_xpos[limb.low].mean(axis=0)
            return np.concatenate((place, flat * data.xmat[limb.end, 6:8]))

        start = np.clip(0.8 * pose[places] + 0.1 * (low + high), low, high)
        for flat in (0.3, 0.0) if len(joints) > 3 else (0.0,):  # An ankle keeps the sole flat.
            goal = foot(np.zeros(len(places)), flat)
            length = data.xanchor[limb.joints[0], 2] - goal[2]
            goal[2] += (1 - share) * length

            def off(angles: np.ndarray, foot=foot, goal=goal, start=start, flat=flat) -> np.ndarray:
                rows = [(*(foot(x, flat) - goal), *(1e-3 * (x - start))) for x in angles.T]
                return np.array(rows).T

            found, _ = least_squares(start, off, (low, high), verbose=Verbosity.SILENT)
            if np.abs(foot(found, flat) - goal)[:3].max() < LEAST_OFF * length:
                bent[places] = found
                break
        else:
            return False
    pose[:] = bent
    return True
