"""A small quadruped that follows velocity commands."""

from mjfleet.legged.config import CommandConfig, RandomConfig, VelocityConfig, velocity_tasks

FLAT = VelocityConfig(
    command=CommandConfig(forward=(-0.7, 0.7), lateral=(-0.4, 0.4)),
    random=RandomConfig(payload=(-0.3, 0.6), center_of_mass=(-0.02, 0.02), push_speed=0.3),
)
TASKS = velocity_tasks("foal", "A small quadruped", 12, FLAT, terrain_scale=0.6)
