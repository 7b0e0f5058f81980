"""The legged robot of an exported run_policy.py, without mjfleet: what velocity_env.py defines.

On the real robot, `read` and `write` are what changes, and `wait` in the loop.
"""

import math
from typing import Any

import mujoco
import numpy as np


class Robot:
    """What the policy observes, what its actions do, and how well it does."""

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData, known: dict[str, Any]) -> None:
        self.data = data
        self.pose = np.array(known["default_pose"])
        self.scale = np.array(known["action_scale"])
        self.least_up = math.cos(known["largest_tilt"])
        self.length = known["observations"][0]["parts"][0]["history"]
        self.reset()

    def reset(self) -> None:
        """Forget the last episode."""
        self.actions = np.zeros(len(self.pose))
        self.frames: list[np.ndarray] = []

    def read(self) -> tuple[np.ndarray, ...]:
        """Return rates of turning (rad/s), the direction of up, angles (rad) and speeds (rad/s).

        The joints are in the order of `joint_names`, the others in the base's frame. On the robot,
        return what its drivers have measured last: gyroscope, the negative direction of gravity,
        and the joints' encoders.
        """
        gyro, up = self.data.sensor("imu_gyro").data, self.data.sensor("base_up").data
        return gyro, up, self.data.qpos[7:], self.data.qvel[6:]

    def write(self, targets: np.ndarray) -> None:
        """Set the joints' targets (rad), which PD controllers with `kp` and `kv` follow.

        On the robot, limit them and send them to the motors.
        """
        self.data.ctrl[:] = targets

    def observe(self, command: np.ndarray) -> np.ndarray:
        gyro, up, angles, speeds = self.read()
        frame = np.concatenate((gyro, up, angles - self.pose, speeds, self.actions))
        self.frames = [*(self.frames or [frame] * self.length), frame][-self.length :]
        return np.concatenate((*self.frames, command))

    def act(self, action: np.ndarray) -> None:
        self.actions = action
        self.write(self.pose + self.scale * action)

    def has_failed(self) -> bool:
        """Return whether the robot lies upside down or on its belly."""
        tilted = self.data.sensor("base_up").data[2] < self.least_up
        return bool(tilted or self.data.sensor("trunk_contact").data[0] > 0)

    def measure(self, command: np.ndarray) -> dict[str, float]:
        """Return the errors of velocity (m/s) and yaw rate (rad/s)."""
        velocity, gyro = (self.data.sensor(name).data for name in ("base_linvel", "imu_gyro"))
        return {
            "task/velocity_error": math.dist(velocity[:2], command[:2]),
            "task/yaw_error": abs(gyro[2] - command[2]),
        }
