"""Unitree G1 that follows velocity commands. README.md has the sources of its numbers."""

from dataclasses import dataclass, field, replace

from mjfleet.config import Task
from mjfleet.legged.config import AGENT, CommandConfig, VelocityConfig, WeightsConfig


@dataclass(frozen=True, kw_only=True)
class G1Weights(WeightsConfig, flags="env.weights."):
    """Weights of the reward terms, per second."""

    swing: float = 3.0
    """Standing on one foot while the other swings, from `air_seconds` on for 0.3 s."""


@dataclass(frozen=True, kw_only=True)
class G1Config(VelocityConfig):
    """Control at 50 Hz in episodes of 20 s."""

    decimation: int = 2
    """Physics steps (10 ms each) per environment step; the action is held meanwhile."""
    weights: G1Weights = field(default_factory=G1Weights)
    """Weights of the reward terms."""


TASKS = {
    "g1-velocity-flat": Task(
        summary="A Unitree G1, a humanoid, follows velocity commands on flat ground.",
        env=G1Config(
            action_scale=0.4,
            command=CommandConfig(forward=(-0.5, 1.0), lateral=(-0.5, 0.5)),
            weights=G1Weights(
                linear=10.0, yaw=6.0, fall=-4.0, torque=-1e-5, power=-1e-3, pose=-0.5, air_time=4.0
            ),
        ),
        env_class="env:FlatEnv",
        # Without a weight on entropy, exploration ended before the robot walked with two of four
        # seeds; with 0.002, deviations of 29 actions grow.
        agent=replace(
            AGENT, max_iterations=1500, algorithm=replace(AGENT.algorithm, entropy_coef=0.001)
        ),
        num_actions=29,
    ),
}
