"""Puts a robot in random poses, to learn what its motors move."""

from collections.abc import Iterator

import mujoco
import numpy as np

from mjfleet.tools.from_model.robot import BALL, Robot

POSES = 200


def random_poses(robot: Robot) -> Iterator[mujoco.MjData]:
    """Yield positions and inertias in random poses within the joints' ranges, ends included."""
    model, rng = robot.model, np.random.default_rng(0)
    data, joints = mujoco.MjData(model), np.flatnonzero(model.jnt_type > BALL).tolist()
    low, high = np.array([reach(model, joint) for joint in joints]).reshape(-1, 2).T
    for _ in range(POSES):
        mujoco.mj_resetDataKeyframe(model, data, 0)
        beyond = 0.25 * (high - low)
        pose = rng.uniform(low - beyond, high + beyond).clip(low, high)
        data.qpos[model.jnt_qposadr[joints]] = pose
        mujoco.mj_fwdPosition(model, data)
        yield data


def reach(model: mujoco.MjModel, joint: int) -> tuple[float, float]:
    """Return the range of a hinge or slide, rad or m; where it has none, a turn, or the model's
    size."""
    if model.jnt_limited[joint]:
        return tuple(model.jnt_range[joint].tolist())
    is_slide = model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_SLIDE
    half = 0.5 * float(model.stat.extent) if is_slide else np.pi
    return (-half, half)


def largest_inertia(robot: Robot) -> np.ndarray:
    """Return the largest inertia of each degree of freedom in random poses, `(nv,)`."""
    full, most = np.zeros((robot.model.nv, robot.model.nv)), np.zeros(robot.model.nv)
    for data in random_poses(robot):
        mujoco.mj_fullM(robot.model, data, full)
        most = np.maximum(most, full.diagonal())
    return most
