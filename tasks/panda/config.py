"""Franka Panda that reaches poses and lifts a cube. README.md has the sources of its numbers."""

from dataclasses import dataclass, field, replace

from mjfleet.config import (
    ActorConfig,
    AgentConfig,
    CriticConfig,
    DistributionConfig,
    EnvConfig,
    PPOConfig,
    Task,
)
from mjfleet.config.validation import Checked, Fraction, NotNegative, Positive, Range


@dataclass(frozen=True, kw_only=True)
class PandaConfig(EnvConfig):
    """Control at 50 Hz."""

    num_envs: int = 512
    """Environments per worker; `mjfleet tune` measures which number trains fastest."""
    decimation: int = 2
    """Physics steps (10 ms each) per environment step; the action is held meanwhile."""
    speed: Fraction = 0.5
    """Share of the speed limits at which actions of 1 move the arm."""
    noise: NotNegative = 1.0
    """Factor of the noise on the policy's observations."""


@dataclass(frozen=True, kw_only=True)
class PoseConfig(Checked, flags="env.pose."):
    """Commanded poses of the hand. None has an arm that is further from home than `spread`."""

    forward: Range = (-0.15, 0.15)
    """Range of the position in m, forward from home."""
    left: Range = (-0.25, 0.25)
    """Range of the position in m, to the left."""
    up: Range = (-0.2, 0.2)
    """Range of the position in m, upwards."""
    tilt: Range = (-0.6, 0.6)
    """Range of the hand's roll and pitch in rad; at 0 it points down."""
    turn: Range = (-1.57, 1.57)
    """Range of the hand's yaw in rad, to the left."""
    spread: Positive = 0.8
    """Largest angle in rad of each joint from home, in the poses that are drawn."""


@dataclass(frozen=True, kw_only=True)
class ReachWeightsConfig(Checked, flags="env.weights."):
    """Weights of the reward terms, per second."""

    distance: float = -4.0
    """Distance from the target in m."""
    near: float = 2.0
    """Being near: 1 at the target, 0.24 at a distance of 0.1 m."""
    at: float = 2.0
    """The same with 0.02 m."""
    angle: float = -2.0
    """Angle from the target's orientation in rad."""
    aligned: float = 3.0
    """Having its orientation: 1 in it, 0.24 at an angle of 0.3 rad."""
    effort: float = -0.1
    """Actions, squared."""
    jerk: float = -0.05
    """Changes of the action, squared."""


@dataclass(frozen=True, kw_only=True)
class ReachConfig(PandaConfig):
    """Episodes of 12 s with three poses each."""

    episode_seconds: float = 12.0
    """Simulated seconds after which an episode times out."""
    pose_seconds: Positive = 4.0
    """Time for each pose in s."""
    pose: PoseConfig = field(default_factory=PoseConfig)
    """Commanded poses."""
    weights: ReachWeightsConfig = field(default_factory=ReachWeightsConfig)
    """Weights of the reward terms."""


@dataclass(frozen=True, kw_only=True)
class CubeConfig(Checked, flags="env.cube."):
    """Where the cube lies at first."""

    forward: Range = (-0.1, 0.1)
    """Range of the position in m, forward from below the hand."""
    left: Range = (-0.2, 0.2)
    """Range of the position in m, to the left."""
    turn: Range = (-0.785, 0.785)
    """Range of the angle in rad, to the left."""


@dataclass(frozen=True, kw_only=True)
class GoalConfig(Checked, flags="env.goal."):
    """Where the cube is to be brought: a point, from 0.3 m above the middle of its places."""

    forward: Range = (-0.1, 0.1)
    """Range of the position in m, forward."""
    left: Range = (-0.2, 0.2)
    """Range of the position in m, to the left."""
    up: Range = (-0.15, 0.15)
    """Range of the position in m, upwards."""


@dataclass(frozen=True, kw_only=True)
class LiftWeightsConfig(Checked, flags="env.weights."):
    """Weights of the reward terms, per second."""

    near: float = 2.0
    """The hand being near the cube: 1 at it, 0.24 at a distance of 0.2 m."""
    grasp: float = 4.0
    """The cube being between the fingers: half of it open, all of it closed."""
    lift: float = 5.0
    """The cube being held 10 cm above the table, or in proportion."""
    goal: float = 10.0
    """A lifted cube being near its goal: 1 at it, 0.24 at a distance of 0.3 m."""
    at_goal: float = 5.0
    """The same, with 0.5 at a distance of 0.05 m and 0.03 at 0.3 m."""
    effort: float = -0.02
    """Actions, squared."""
    jerk: float = -0.002
    """Changes of the action, squared."""


@dataclass(frozen=True, kw_only=True)
class LiftConfig(PandaConfig):
    """Episodes of 5 s with one cube and one goal each."""

    episode_seconds: float = 5.0
    """Simulated seconds after which an episode times out."""
    speed: Fraction = 0.25
    """Share of the speed limits at which actions of 1 move the hand."""
    cube: CubeConfig = field(default_factory=CubeConfig)
    """Where the cube lies at first."""
    goal: GoalConfig = field(default_factory=GoalConfig)
    """Where the cube is to be brought."""
    weights: LiftWeightsConfig = field(default_factory=LiftWeightsConfig)
    """Weights of the reward terms."""


AGENT = AgentConfig(
    num_steps_per_env=8,
    max_iterations=1500,
    actor=ActorConfig(
        hidden_dims=(128, 128),
        obs_normalization=True,
        distribution=DistributionConfig(init_std=0.5),
    ),
    critic=CriticConfig(hidden_dims=(128, 128), obs_normalization=True),
    algorithm=PPOConfig(
        schedule="fixed", gamma=0.95, entropy_coef=0.0005, use_clipped_value_loss=False
    ),
)

TASKS = {
    "panda-reach": Task(
        summary="A Franka Panda brings its hand to commanded poses.",
        env=ReachConfig(),
        env_class="reach:ReachEnv",
        agent=AGENT,
        num_actions=7,
    ),
    "panda-lift": Task(
        summary="A Franka Panda lifts a cube to a commanded place.",
        env=LiftConfig(),
        env_class="lift:LiftEnv",
        agent=replace(AGENT, algorithm=replace(AGENT.algorithm, gamma=0.97, entropy_coef=0.002)),
        num_actions=5,
    ),
}
