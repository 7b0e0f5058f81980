"""Unitree Go2 that follows velocity commands. README.md has the sources of its numbers."""

from mjfleet.legged.config import velocity_tasks

TASKS = velocity_tasks("go2", "A Unitree Go2", num_actions=12)
