"""Unitree Go1 that follows velocity commands or clips. README.md has the sources of its numbers."""

from mjfleet.config import Task
from mjfleet.legged.config import velocity_tasks
from mjfleet.tracking.config import AGENT, TrackingConfig

LEGS = ("FR", "FL", "RR", "RL")
CALVES = tuple(f"{leg}_calf" for leg in LEGS)

TASKS = velocity_tasks("go1", "A Unitree Go1", num_actions=12) | {
    "go1-tracking": Task(
        summary="A Unitree Go1 does what clips show: --env.clips FILES.",
        env=TrackingConfig(
            clips=("task:clips/trot.npz",),
            anchor="trunk",
            bodies=("trunk", *(f"{leg}_thigh" for leg in LEGS), *CALVES),
            end_bodies=CALVES,
            feet=tuple(f"{leg}_foot" for leg in LEGS),
            touching=CALVES,
            self_collision=CALVES,
        ),
        env_class="env:FollowEnv",
        agent=AGENT,
        num_actions=12,
    ),
}
"""Unitree Go1 on flat and on rough ground: mjfleet.legged and mjfleet.tracking have what it
observes and earns."""
