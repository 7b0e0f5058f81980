"""Unitree Go1 on flat and on rough ground: mjfleet.legged has what it observes and earns."""

from mjfleet.legged.mirror import mirror
from mjfleet.legged.rough_env import RoughVelocityEnv
from mjfleet.legged.velocity_env import VelocityEnv

__all__ = ["FlatEnv", "RoughEnv", "mirror"]


class FlatEnv(VelocityEnv):
    """Twelve actions, one per joint."""

    model_file = "go1.xml"


class RoughEnv(RoughVelocityEnv, FlatEnv):
    """The same on rough ground."""
