"""Soft actor-critic."""

from mjfleet.rl.sac.sac import SAC as SAC
