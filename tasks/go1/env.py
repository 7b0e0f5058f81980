"""Unitree Go1: mjfleet.legged and mjfleet.tracking have what it observes and earns."""

from mjfleet.legged.mirror import mirror
from mjfleet.legged.rough_env import RoughVelocityEnv
from mjfleet.legged.velocity_env import VelocityEnv
from mjfleet.tracking.tracking_env import TrackingEnv

__all__ = ["FlatEnv", "FollowEnv", "RoughEnv", "mirror"]


class FlatEnv(VelocityEnv):
    """Twelve actions, one per joint."""

    model_file = "go1.xml"


class RoughEnv(RoughVelocityEnv, FlatEnv):
    """The same on rough ground."""


class FollowEnv(TrackingEnv):
    """Twelve actions, one per joint."""

    model_file = "go1.xml"
