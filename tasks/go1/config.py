"""Unitree Go1 that follows velocity commands. README.md has the sources of its numbers."""

from mjfleet.legged.config import velocity_tasks

TASKS = velocity_tasks("go1", "A Unitree Go1", num_actions=12)
