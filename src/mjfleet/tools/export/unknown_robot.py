"""The robot of a task that has no robot.py: complete `observe` and `act` before you run this."""

from typing import Any

import mujoco
import numpy as np


class Robot:
    """What the policy observes, what its actions do, and how well it does."""

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData, known: dict[str, Any]) -> None:
        """Keep the simulation and `known`, the content of policy.json."""
        self.model, self.data, self.known = model, data, known

    def reset(self) -> None:
        """Forget the last episode, such as earlier observations and actions."""

    def observe(self, command: np.ndarray) -> np.ndarray:
        """Return the observation, `(observation_size,)`, with the parts that policy.json names.

        It is what the task's `observe()` returns for the policy, without noise.
        """
        raise SystemExit(f"write Robot.observe() in {__file__}: how an observation is computed")

    def act(self, action: np.ndarray) -> None:
        """Write `data.ctrl` from an action, `(action_size,)`, as the task's `apply()` does."""
        raise SystemExit(f"write Robot.act() in {__file__}: what an action means")

    def has_failed(self) -> bool:
        """Return whether the episode has failed, as the task's `terminated()` does."""
        return False

    def measure(self, command: np.ndarray) -> dict[str, float]:
        """Return numbers of the last step to judge the policy by, named as in the table of `play`.

        Those named task/... are averaged over all steps, others are summed over an episode.
        """
        return {}
