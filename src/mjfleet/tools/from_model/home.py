"""Finds the pose in which a robot stands or begins."""

from itertools import pairwise

import mujoco
import numpy as np
from mujoco import minimize

from mjfleet.tools.from_model.completed import Completed
from mjfleet.tools.from_model.robot import Limb, Robot

MARGIN = 0.1
"""How far the pose `home` stays from the ends of a joint's range, as a share of the range."""


def leg_length(robot: Robot) -> float:
    """Return the length of a leg from its hip to its foot, m: joints' distances, seen from the
    side."""
    lengths = []
    for limb in robot.feet:
        points = [robot.data.xanchor[joint] for joint in limb.own]
        points.append(robot.data.xpos[robot.root] + limb.place)
        lengths.append(sum(np.hypot(*(b - a)[[0, 2]]) for a, b in pairwise(points)))
    return float(np.mean(lengths)) if lengths else 0.0


def pose_home(done: Completed) -> np.ndarray:
    """Return the pose `home`: the file's own, or one with feet below their hips, on the ground."""
    robot, model = done.robot, done.robot.model
    pose = np.array(robot.data.qpos)
    if done.pose_of_file() is None:
        for joint in robot.joints:
            if model.jnt_limited[joint] and model.jnt_type[joint] >= 2:
                (low, high), at = model.jnt_range[joint], model.jnt_qposadr[joint]
                inside = np.clip(pose[at], *_inner_range(model, joint))
                pose[at] = inside if low <= pose[at] <= high else (low + high) / 2
        if robot.feet and robot.is_free and not robot.is_closed:
            pose = _feet_below_hips(robot, pose)
            done.questions.append(
                "In which pose does the robot stand? The keyframe `home` has the feet below the "
                "hips; actions are offsets from it."
            )
        done.added.append("the keyframe `home`")
    if robot.is_free:
        at = model.jnt_qposadr[model.body_jntadr[robot.root]]
        before = pose[at + 2]
        pose[at + 2] -= Robot(model, pose).lowest() if robot.feet or robot.wheels else 0.0
        if done.pose_of_file() is not None and abs(pose[at + 2] - before) > 0.01:
            done.added.append(
                f"{pose[at + 2] - before:+.3f} m to the height of the keyframe `home`, so that it "
                "touches the ground"
            )
    return np.round(pose, 4)


def _inner_range(model: mujoco.MjModel, joint: int) -> tuple[float, float]:
    """Return a joint's range without a margin at its ends."""
    low, high = model.jnt_range[joint]
    return low + MARGIN * (high - low), high - MARGIN * (high - low)


def _feet_below_hips(robot: Robot, pose: np.ndarray) -> np.ndarray:
    """Return a pose with bent knees and the feet below the hips, as flat as they are at first.

    The feet of a biped are below its centre of mass instead.
    """
    length, share = leg_length(robot), 0.95 if len(robot.feet) == 2 else 0.75
    ahead = 0.0
    for _ in range(3 if len(robot.feet) == 2 else 1):
        for limb in robot.feet:
            pose = _bend(robot, pose, limb, np.array((ahead, 0.0, -share * length)))
        now = Robot(robot.model, pose)
        hips = [now.data.xanchor[limb.own[0], 0] for limb in robot.feet]
        ahead = float(now.data.subtree_com[robot.root, 0] - np.mean(hips))
    return pose


def _bend(robot: Robot, pose: np.ndarray, limb: Limb, target: np.ndarray) -> np.ndarray:
    """Return a pose in which a limb's foot is at `target` from its hip, and beside it as before."""
    model, data = robot.model, mujoco.MjData(robot.model)
    hinges = [joint for joint in limb.own if model.jnt_limited[joint]]
    places, first = model.jnt_qposadr[hinges], limb.own[0]
    geoms = robot.low_geoms(limb.end)
    before = robot.data.xmat[limb.end].reshape(3, 3)
    target = target.copy()
    target[1] = robot.data.geom_xpos[geoms, 1].mean() - robot.data.xanchor[first, 1]
    start, size = pose[places], leg_length(robot)

    def residual(angles: np.ndarray) -> np.ndarray:
        rows = []
        for column in angles.T:
            data.qpos[:] = pose
            data.qpos[places] = column
            mujoco.mj_kinematics(model, data)
            off = data.geom_xpos[geoms].mean(axis=0) - data.xanchor[first] - target
            turned = (data.xmat[limb.end].reshape(3, 3) - before).ravel()
            flat = 0.3 * size * turned if len(hinges) > 3 else np.zeros(9)
            rows.append(np.concatenate((off, flat, 0.02 * size * (column - start))))
        return np.array(rows).T

    bounds = np.array([_inner_range(model, joint) for joint in hinges]).T[:, :, None]
    found, _ = minimize.least_squares(
        start[:, None], residual, list(bounds), verbose=minimize.Verbosity.SILENT
    )
    pose = pose.copy()
    pose[places] = found.ravel()
    return pose
