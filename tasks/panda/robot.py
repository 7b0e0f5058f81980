"""The Panda of an exported run_policy.py, without mjfleet; `reach.py`, `lift.py` define the same.

On the real robot, `read` and `write` are what changes, and `wait` in the loop.
"""

import math
from typing import Any

import mujoco
import numpy as np

HALF, DAMPING = 0.02, 0.05
"""As in `lift.py`."""


class Robot:
    """What the policy observes, what its actions do, and how well it does."""

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData, known: dict[str, Any]) -> None:
        self.model, self.data, self.known = model, data, known
        self.pose, self.stride = np.array(known["default_pose"]), np.array(known["stride"])
        self.centre, self.ranges = np.array(known["centre"]), np.array(known["control_ranges"])
        self.lifts = len(self.stride) == 5
        self.reset()

    def reset(self) -> None:
        """Forget the last episode."""
        self.actions, self.steps = np.zeros(len(self.stride)), 0
        self.targets = np.append(self.read()[0][:7], self.pose[7])

    def read(self) -> tuple[np.ndarray, ...]:
        """Return angles and finger position (rad, m), their speeds, the tool centre point's
        position (m) and axes (columns of a matrix), and its Jacobian, `(6, 7)`.

        On the robot, return what libfranka has measured last: q, dq, O_T_EE and zeroJacobian.
        """
        data, tcp = self.data, self.data.site("tcp")
        jacobian = np.zeros((2, 3, self.model.nv))
        mujoco.mj_jacSite(self.model, data, jacobian[0], jacobian[1], tcp.id)
        matrix = tcp.xmat.reshape(3, 3)
        return data.qpos[:8], data.qvel[:8], tcp.xpos, matrix, jacobian.reshape(6, -1)[:, :7]

    def see(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the cube's position (m) and the direction of its x axis. On the robot, a camera
        has to find them."""
        return self.data.sensor("cube_position").data, self.data.sensor("cube_x").data

    def write(self, targets: np.ndarray) -> None:
        """Set the targets of joints and fingers (rad, m), which controllers with `kp` and `kv`
        follow. On the robot, send them to its joint impedance controller and its gripper."""
        self.data.ctrl[:] = targets

    def observe(self, command: np.ndarray) -> np.ndarray:
        angles, speeds, hand, axes, _ = self.read()
        offsets = angles[:7] - self.pose[:7]
        self.data.mocap_pos[0] = goal = self.centre + command[:3]  # What a window shows.
        if not self.lifts:
            way, turn = self.errors(command)
            return np.concatenate((offsets, speeds[:7], way, turn, self.actions))
        cube, cube_x = self.see()
        angle = 4 * math.atan2(cube_x @ axes[:, 1], cube_x @ axes[:, 0])
        way = (hand - self.centre, cube - hand, goal - cube, (math.cos(angle), math.sin(angle)))
        return np.concatenate((offsets, angles[7:], speeds, *way, self.actions))

    def act(self, action: np.ndarray) -> None:
        self.actions, self.steps = action, self.steps + 1
        told = by = self.stride * action.clip(-1.0, 1.0)
        if self.lifts:
            _, _, hand, axes, jacobian = self.read()
            told[2] = max(told[2], HALF - hand[2])
            turn = 0.1 * np.cross(axes[:, 2], (0.0, 0.0, -1.0)) + (0.0, 0.0, told[3])
            square = jacobian @ jacobian.T + DAMPING**2 * np.eye(6)
            by = jacobian.T @ np.linalg.solve(square, np.concatenate((told[:3], turn)))
            by = np.append(by, told[4])
        self.targets[: len(by)] += by
        self.targets = self.targets.clip(*self.ranges.T)
        angles, lead = self.read()[0][:7], np.array(self.known["lead"])
        self.targets[:7] = self.targets[:7].clip(angles - lead, angles + lead)
        self.write(self.targets)

    def has_failed(self) -> bool:
        return False

    def errors(self, command: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the way to the target (m) and the turn into its orientation, a rotation vector
        (rad), in the base's axes."""
        _, _, hand, axes, _ = self.read()
        wanted, turned, matrix = np.zeros(4), np.zeros(4), np.zeros(9)
        mujoco.mju_euler2Quat(turned, command[3:], "XYZ")
        mujoco.mju_mulQuat(wanted, turned, np.array((0.0, 1.0, 0.0, 0.0)))  # It points down.
        self.data.mocap_quat[0] = wanted
        mujoco.mju_quat2Mat(matrix, wanted)
        vector, quaternion = np.zeros(3), np.zeros(4)
        mujoco.mju_mat2Quat(quaternion, (matrix.reshape(3, 3) @ axes.T).ravel())
        mujoco.mju_quat2Vel(vector, quaternion, 1.0)
        return self.centre + command[:3] - hand, vector

    def measure(self, command: np.ndarray) -> dict[str, float]:
        """Return errors (m, rad) and shares when the time of a target is up, else 0.

        They are weighted so that their means over all steps are those over all targets.
        """
        weight = self.known["period"] * (self.steps % self.known["period"] == 0)
        if self.lifts:
            cube, _ = self.see()
            distance = math.dist(self.centre + command, cube)
            figures = {"success": distance < 0.05, "lifted": cube[2] > 0.04}
            figures["goal_distance"] = distance
        else:
            way, turn = self.errors(command)
            figures = {"position_error": np.linalg.norm(way)}
            figures["orientation_error"] = np.linalg.norm(turn)
        return {f"task/{name}": weight * float(value) for name, value in figures.items()}
