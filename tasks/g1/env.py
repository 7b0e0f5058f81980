"""Unitree G1 on flat ground: mjfleet.legged has what it observes and earns."""

import math
from collections.abc import Callable, Mapping
from typing import ClassVar

import torch

from mjfleet.legged.mirror import mirror
from mjfleet.legged.velocity_env import VelocityEnv

from .config import G1Config

__all__ = ["FlatEnv", "mirror"]


class FlatEnv(VelocityEnv):
    """29 actions, one per joint."""

    model_file = "g1.xml"
    base = "pelvis"
    feet = ("left_foot", "right_foot")
    action_factors: ClassVar[Mapping[str, float]] = {"waist|shoulder|elbow": 0.5, "wrist": 0.25}
    pose_factors: ClassVar[Mapping[str, float]] = {
        "hip_pitch|knee": 0.5,
        "hip_roll|hip_yaw|shoulder|elbow": 3.0,
        "ankle_roll|waist": 4.0,
    }
    largest_tilt = math.radians(45)

    cfg: G1Config  # pyright: ignore[reportIncompatibleVariableOverride]

    def reward_terms(self) -> dict[str, torch.Tensor | Callable[[], torch.Tensor]]:
        """Add the reward of mjlab's and Isaac Lab's bipeds for steps instead of standing."""
        return {**super().reward_terms(), "swing": self.swings}

    def swings(self) -> torch.Tensor:
        """Return 1 where the robot walks: one foot on the ground, the other neither too short nor
        too long in the air."""
        seconds = self.cfg.air_seconds
        swings = (self.air_time > seconds) & (self.air_time < seconds + 0.3)
        on_one_foot = self.touching.sum(dim=1) == 1
        return (swings.any(dim=1) & on_one_foot & ~self.stands).float()

    def terminated(self) -> torch.Tensor:
        """Return where the robot is tilted, or anything but its feet touches the ground."""
        others = self.contacts[:, 0] > self.on_ground.sum(dim=1)
        return super().terminated() | others
