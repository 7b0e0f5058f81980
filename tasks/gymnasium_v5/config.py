"""Gymnasium's MuJoCo tasks, version 5 (gymnasium.farama.org/environments/mujoco; MIT license)."""

from dataclasses import dataclass
from typing import Annotated

from mjfleet.config import (
    ActorConfig,
    AgentConfig,
    CriticConfig,
    DistributionConfig,
    EnvConfig,
    PPOConfig,
    Task,
)
from mjfleet.config.validation import NotNegative, Rule

LOWER_FIRST = Rule(lambda v: v[0] < v[1], "two numbers, the lower one first")
Limits = Annotated[tuple[float, float], LOWER_FIRST]


@dataclass(frozen=True, kw_only=True)
class V5Config(EnvConfig):
    """Gymnasium's parameters of a task, with its defaults. Episodes have 1000 steps."""

    num_envs: int = 64
    """Environments per worker; `mjfleet tune` measures which number trains fastest."""
    decimation: int = 5
    """Physics steps per environment step (frame_skip); the action is held meanwhile."""
    episode_seconds: float = 50.0
    """Simulated seconds after which an episode times out."""
    reset_noise: NotNegative = 0.1
    """Scale of the noise on the initial state (reset_noise_scale)."""


@dataclass(frozen=True, kw_only=True)
class RunnerConfig(V5Config):
    """Settings of a task that rewards forward velocity."""

    forward_weight: float = 1.0
    """Weight of the forward velocity in m/s (forward_reward_weight)."""
    control_weight: float = 0.1
    """Weight of the squared actions (ctrl_cost_weight)."""


@dataclass(frozen=True, kw_only=True)
class HealthyConfig(RunnerConfig):
    """Settings of a task that ends when the robot falls."""

    healthy_reward: float = 1.0
    """Reward of each step in which the robot is healthy."""
    healthy_height: Limits = (0.8, 2.0)
    """Range of the torso's height in m in which the robot is healthy (healthy_z_range)."""
    healthy_angle: Limits = (-1.0, 1.0)
    """Range of the torso's pitch in rad in which the robot is healthy (healthy_angle_range); of no
    use in three dimensions."""
    terminate_when_unhealthy: bool = True
    """Whether an unhealthy robot ends the episode."""


@dataclass(frozen=True, kw_only=True)
class DoublePendulumConfig(V5Config):
    """Settings of the double pendulum."""

    healthy_reward: float = 10.0
    """Reward of each step in which the tip is above 1 m."""


def agent(init_std: float = 1.0, gamma: float = 0.99) -> AgentConfig:
    """Return settings like those of Schulman et al. 2017 (arXiv:1707.06347).

    Rollouts of 2048 steps, and 10 epochs at a fixed learning rate of 3e-4.
    """
    return AgentConfig(
        num_steps_per_env=32,
        max_iterations=500,
        actor=ActorConfig(
            hidden_dims=(64, 64),
            obs_normalization=True,
            distribution=DistributionConfig(init_std=init_std),
        ),
        critic=CriticConfig(hidden_dims=(64, 64), obs_normalization=True),
        algorithm=PPOConfig(
            gamma=gamma,
            learning_rate=3e-4,
            schedule="fixed",
            num_learning_epochs=10,
            num_mini_batches=8,
            entropy_coef=0.0,
            use_clipped_value_loss=False,
        ),
    )


def task(
    env_class: str,
    summary: str,
    env: EnvConfig,
    num_actions: int,
    observations: int,
    agent: AgentConfig,
) -> Task:
    """Return a task whose model is in Gymnasium's package."""
    sizes = {"actor": observations, "critic": observations}
    return Task(
        summary=f"{summary} (Gymnasium).",
        env=env,
        env_class=env_class,
        agent=agent,
        num_actions=num_actions,
        observation_sizes=sizes,
        packages=("gymnasium",),
        extra="gym",
    )


TASKS = {
    "ant-v5": task(
        "spatial:AntEnv",
        "A robot with four legs runs forward",
        HealthyConfig(control_weight=0.5, healthy_height=(0.2, 1.0)),
        8,
        27,
        agent(init_std=0.5),
    ),
    "half-cheetah-v5": task(
        "env:HalfCheetahEnv", "A planar cheetah runs forward", RunnerConfig(), 6, 17, agent()
    ),
    "hopper-v5": task(
        "env:HopperEnv",
        "A planar leg hops forward",
        HealthyConfig(
            decimation=4,
            episode_seconds=8.0,
            reset_noise=5e-3,
            control_weight=1e-3,
            healthy_height=(0.7, float("inf")),
            healthy_angle=(-0.2, 0.2),
        ),
        3,
        11,
        agent(),
    ),
    "humanoid-v5": task(
        "spatial:HumanoidEnv",
        "A humanoid walks forward",
        HealthyConfig(
            episode_seconds=15.0,
            reset_noise=1e-2,
            forward_weight=1.25,
            healthy_reward=5.0,
            healthy_height=(1.0, 2.0),
        ),
        17,
        270,
        agent(init_std=0.2),
    ),
    "inverted-double-pendulum-v5": task(
        "pendulums:DoublePendulumEnv",
        "Keep two poles, one on the other, upright on a cart",
        DoublePendulumConfig(),
        1,
        9,
        agent(),
    ),
    "inverted-pendulum-v5": task(
        "pendulums:PendulumEnv",
        "Keep a pole upright on a cart",
        V5Config(decimation=2, episode_seconds=40.0, reset_noise=0.01),
        1,
        4,
        agent(),
    ),
    "swimmer-v5": task(
        "env:SwimmerEnv",
        "A planar snake swims forward",
        RunnerConfig(decimation=4, episode_seconds=40.0, control_weight=1e-4),
        2,
        8,
        agent(gamma=0.9999),
    ),
    "walker2d-v5": task(
        "env:Walker2dEnv",
        "Two planar legs walk forward",
        HealthyConfig(decimation=4, episode_seconds=8.0, reset_noise=5e-3, control_weight=1e-3),
        6,
        17,
        agent(),
    ),
}
