"""Clips of motions that robots follow."""

from mjfleet.parts.motion.motion import Frame, Motion

__all__ = ["Frame", "Motion"]
