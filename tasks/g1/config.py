"""Unitree G1 that follows velocity commands. README.md has the sources of its numbers."""

from mjfleet.config import Task
from mjfleet.legged.config import BIPED_AGENT, BipedWeights, CommandConfig, VelocityConfig

TASKS = {
    "g1-velocity-flat": Task(
        summary="A Unitree G1, a humanoid, follows velocity commands on flat ground.",
        env=VelocityConfig(
            decimation=2,  # Physics steps of 10 ms.
            action_scale=0.4,
            largest_action=3.0,  # The 97.5th percentile of PPO's actions is 2.6.
            command=CommandConfig(forward=(-0.5, 1.0), lateral=(-0.5, 0.5)),
            weights=BipedWeights(
                linear=10.0, yaw=6.0, fall=-4.0, torque=-1e-5, power=-1e-3, pose=-0.5, air_time=4.0
            ),
        ),
        env_class="env:FlatEnv",
        agent=BIPED_AGENT,
        num_actions=29,
    ),
}
