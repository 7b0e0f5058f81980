"""A small quadruped on flat and on rough ground."""

from mjfleet.legged.mirror import mirror
from mjfleet.legged.rough_env import RoughVelocityEnv
from mjfleet.legged.velocity_env import VelocityEnv

__all__ = ["FlatEnv", "RoughEnv", "mirror"]


class FlatEnv(VelocityEnv):
    """Twelve actions, one per joint."""

    model_file = "foal.xml"


class RoughEnv(RoughVelocityEnv, FlatEnv):
    """The same on rough ground."""
