"""Clips of motions that robots follow."""

from mjfleet.parts.motion.motion import Frame, Motion
from mjfleet.parts.motion.sampling import Adaptation

__all__ = ["Adaptation", "Frame", "Motion"]
