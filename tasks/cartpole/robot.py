"""The cart-pole of an exported run_policy.py, without mjfleet; `env.py` defines the same."""

import math
from typing import Any

import mujoco
import numpy as np


class Robot:
    """What the policy observes, what its actions do, and how well it does."""

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData, known: dict[str, Any]) -> None:
        self.data = data

    def reset(self) -> None:
        """Forget the last episode: there is nothing to forget."""

    def read(self) -> tuple[float, float, float, float]:
        """Return position (m) and angle (rad), and their speeds. A real cart reads its encoders."""
        (cart, angle), (cart_speed, pole_speed) = self.data.qpos, self.data.qvel
        return cart, angle, cart_speed, pole_speed

    def write(self, force: float) -> None:
        """Push with a share of the largest force, in [-1, 1]. A real cart tells its motor."""
        self.data.ctrl[:] = force

    def observe(self, command: np.ndarray) -> np.ndarray:
        cart, angle, cart_speed, pole_speed = self.read()
        return np.array((cart, math.cos(angle), math.sin(angle), cart_speed, pole_speed))

    def act(self, action: np.ndarray) -> None:
        self.write(float(action[0].clip(-1.0, 1.0)))

    def has_failed(self) -> bool:
        return False

    def measure(self, command: np.ndarray) -> dict[str, float]:
        """Return the suite's smooth reward."""
        cart, angle, _, pole_speed = self.read()
        upright = (math.cos(angle) + 1) / 2
        centered = (1 + 0.1 ** ((cart / 2.0) ** 2)) / 2
        small_control = (5 - self.data.ctrl[0] ** 2) / 5
        small_velocity = (1 + 0.1 ** ((pole_speed / 5.0) ** 2)) / 2
        return {"return": upright * small_control * small_velocity * centered}
