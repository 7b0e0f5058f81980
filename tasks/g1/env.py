"""Unitree G1: mjfleet.legged and mjfleet.tracking have what it observes and earns."""

from collections.abc import Mapping
from typing import ClassVar

from mjfleet.legged.biped_env import BipedEnv
from mjfleet.legged.mirror import mirror
from mjfleet.tracking.tracking_env import TrackingEnv

__all__ = ["FlatEnv", "FollowEnv", "mirror"]


class FlatEnv(BipedEnv):
    """29 actions, one per joint."""

    model_file = "g1.xml"
    base = "pelvis"
    action_factors: ClassVar[Mapping[str, float]] = {"waist|shoulder|elbow": 0.5, "wrist": 0.25}
    pose_factors: ClassVar[Mapping[str, float]] = {
        "hip_pitch|knee": 0.5,
        "hip_roll|hip_yaw|shoulder|elbow": 3.0,
        "ankle_roll|waist": 4.0,
    }


class FollowEnv(TrackingEnv):
    """29 actions, one per joint; the bodies are those of BeyondMimic."""

    model_file = "g1.xml"
    accepted_findings: ClassVar[Mapping[str, str]] = {
        **TrackingEnv.accepted_findings,
        "truncated() was never true": "with random actions it falls before a clip's end",
    }
