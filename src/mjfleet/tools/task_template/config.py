"""A planar arm with two motors that brings its fingertip to a target."""

from dataclasses import dataclass

from mjfleet.config import ActorConfig, AgentConfig, CriticConfig, EnvConfig, PPOConfig, Task


@dataclass(frozen=True, kw_only=True)
class ReacherConfig(EnvConfig):
    """Control at 50 Hz in episodes of 4 s, each with a target of its own."""

    num_envs: int = 512
    """Environments per worker."""
    decimation: int = 2
    """Physics steps (0.01 s each) per environment step; the action is held meanwhile."""
    episode_seconds: float = 4.0
    """Simulated seconds after which an episode times out."""
    sensor_noise: float = 0.01
    """Standard deviation of the noise on the actor's observations."""
    effort_weight: float = 1.0
    """Weight of the penalty on squared actions, per second."""


TASKS = {
    "reacher": Task(
        summary="Bring the fingertip of an arm with two joints to a target.",
        env=ReacherConfig(),
        env_class="env:ReacherEnv",
        agent=AgentConfig(
            max_iterations=150,
            actor=ActorConfig(hidden_dims=(64, 64)),
            critic=CriticConfig(hidden_dims=(64, 64)),
            algorithm=PPOConfig(entropy_coef=0.003, use_clipped_value_loss=False),
        ),
    ),
}
