"""A robot on two legs follows velocity commands. Runs in a worker."""

import math
from collections.abc import Callable

import torch

from mjfleet.legged.velocity_env import VelocityEnv


class BipedEnv(VelocityEnv):
    """Rewards steps, without which a robot on two legs learns to stand still.

    Its configuration has `BipedWeights`. It has fallen where it leans by more than 45 degrees, or
    touches the ground with anything but its feet.
    """

    feet = ("left_foot", "right_foot")
    largest_tilt = math.radians(45)

    def reward_terms(self) -> dict[str, torch.Tensor | Callable[[], torch.Tensor]]:
        """Add the reward of mjlab's and Isaac Lab's bipeds for steps instead of standing."""
        return {**super().reward_terms(), "swing": self.swings}

    def swings(self) -> torch.Tensor:
        """Return 1 where the robot walks, `(num_envs,)`: one foot on the ground, the other neither
        too short nor too long in the air."""
        seconds = self.cfg.air_seconds
        swings = (self.air_time > seconds) & (self.air_time < seconds + 0.3)
        on_one_foot = self.touching.sum(dim=1) == 1
        return (swings.any(dim=1) & on_one_foot & ~self.stands).float()

    def terminated(self) -> torch.Tensor:
        """Return where the robot is tilted, or anything but its feet touches the ground."""
        others = self.contacts[:, 0] > self.on_ground.sum(dim=1)
        return super().terminated() | others
