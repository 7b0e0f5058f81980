"""The numbers of robots that follow clips. Imports nothing heavy.

Defaults are those that mjlab 1.6 and BeyondMimic (Liao et al. 2025, arXiv:2508.08241) publish, but
for how the learner explores and how fast it learns.
"""

from dataclasses import dataclass, field
from typing import Annotated

from mjfleet.config import (
    ActorConfig,
    AgentConfig,
    CriticConfig,
    DistributionConfig,
    EnvConfig,
    PPOConfig,
    SamplingConfig,
)
from mjfleet.config.validation import Checked, NotNegative, Positive, PositiveRange, Rule
from mjfleet.utils.input_files import Suffixes

Clips = Annotated[tuple[str, ...], Suffixes((".csv", ".npz"))]
Amounts = Annotated[
    tuple[float, float, float], Rule(lambda v: min(v) >= 0, "three numbers, none below 0")
]


@dataclass(frozen=True, kw_only=True)
class StartConfig(Checked, flags="env.start."):
    """How far from its frame a robot begins, of either sign; pushes have the same velocities."""

    position: Amounts = (0.05, 0.05, 0.01)
    """Distance of the base along x, y and z, m."""
    rotation: Amounts = (0.1, 0.1, 0.2)
    """Roll, pitch and yaw of the base, rad."""
    joints: NotNegative = 0.1
    """Angles of the joints, rad."""
    velocity: Amounts = (0.5, 0.5, 0.2)
    """Velocity of the base along x, y and z, m/s."""
    spin: Amounts = (0.52, 0.52, 0.78)
    """Angular velocity of the base about x, y and z, rad/s."""


@dataclass(frozen=True, kw_only=True)
class NoiseConfig(Checked, flags="env.noise."):
    """Noise on what the policy observes, of either sign."""

    anchor_position: NotNegative = 0.25
    """Noise on the position of the clip's anchor relative to the robot's, m."""
    anchor_rotation: NotNegative = 0.05
    """Noise on each number of the anchor's relative rotation."""
    velocity: NotNegative = 0.5
    """Noise on the velocity of the base, m/s."""
    spin: NotNegative = 0.2
    """Noise on the angular velocity of the base, rad/s."""
    joints: NotNegative = 0.01
    """Noise on the angles of the joints, rad."""
    speeds: NotNegative = 0.5
    """Noise on the velocities of the joints, rad/s."""


@dataclass(frozen=True, kw_only=True)
class RandomConfig(Checked, flags="env.random."):
    """Randomisation of environments and episodes."""

    friction: PositiveRange = (0.3, 1.2)
    """Sliding friction of the feet."""
    center_of_mass: Amounts = (0.025, 0.05, 0.05)
    """Shift of the anchor's centre of mass along x, y and z, m, of either sign."""
    encoder_bias: NotNegative = 0.01
    """Constant error of a joint's encoder in an episode, rad, of either sign: of what the policy
    observes, and of what the motor's controller measures."""
    push_seconds: PositiveRange = (1.0, 3.0)
    """Range of the time between pushes in s."""
    pushes: bool = True
    """Whether the robot is pushed."""


@dataclass(frozen=True, kw_only=True)
class WeightsConfig(Checked, flags="env.weights."):
    """Weights of the reward terms, per second."""

    anchor_position: float = 0.5
    """Position of the anchor."""
    anchor_rotation: float = 0.5
    """Rotation of the anchor."""
    body_position: float = 1.0
    """Positions of the bodies, relative to the anchor's position and heading."""
    body_rotation: float = 1.0
    """Rotations of the bodies, relative to the anchor's heading."""
    body_velocity: float = 1.0
    """Velocities of the bodies."""
    body_spin: float = 1.0
    """Angular velocities of the bodies."""
    action_rate: float = -0.1
    """Changes of the action, squared."""
    joint_limits: float = -10.0
    """Joints beyond 90% of their range, rad."""
    touch: float = -0.1
    """Contacts of the ground with bodies other than `touching`."""
    self_collision: float = -10.0
    """Bodies that press on each other by more than 10 N in the newest physics step."""


@dataclass(frozen=True, kw_only=True)
class WidthsConfig(Checked, flags="env.widths."):
    """Errors at which a tracking term has fallen to 1/e."""

    anchor_position: Positive = 0.3
    """Distance of the anchor, m."""
    anchor_rotation: Positive = 0.4
    """Angle between the anchors, rad."""
    body_position: Positive = 0.3
    """Distance of the bodies, m: the root of the mean square, as in the next three."""
    body_rotation: Positive = 0.4
    """Angle between the rotations of the bodies, rad."""
    body_velocity: Positive = 1.0
    """Difference of the bodies' velocities, m/s."""
    body_spin: Positive = 3.14
    """Difference of the bodies' angular velocities, rad/s."""


@dataclass(frozen=True, kw_only=True)
class EndsConfig(Checked, flags="env.ends."):
    """Errors beyond which a robot has failed."""

    anchor_height: Positive = 0.25
    """Error of the anchor's height, m."""
    gravity: Positive = 0.8
    """Error of the z component of gravity's direction in the anchor's frame."""
    body_height: Positive = 0.25
    """Error of the height of any of `end_bodies`, m."""


@dataclass(frozen=True, kw_only=True)
class TrackingConfig(EnvConfig):
    """Control at 50 Hz in episodes of 10 s."""

    num_envs: int = 4096
    decimation: int = 4
    episode_seconds: float = 10.0
    clips: Clips = ()
    """Clips to follow: files, folders, and weights, such as `walk.csv moves/ dance.npz=2`."""
    anchor: str = "torso"
    """Body to whose position and heading the other bodies are relative."""
    bodies: tuple[str, ...] = ()
    """Bodies that follow the clip."""
    end_bodies: tuple[str, ...] = ()
    """Bodies whose height may be off by `ends.body_height` at most."""
    feet: tuple[str, ...] = ()
    """Geoms or bodies whose friction differs."""
    touching: tuple[str, ...] = ()
    """Bodies that may touch the ground, with all below them."""
    self_collision: tuple[str, ...] = ()
    """Bodies that collide with each other, by the shapes with which they touch the ground, or by
    all that they have."""
    action_scale: Positive = 0.25
    """Share of its torque limit by which an action of 1 moves a joint's target, over kp, rad."""
    state_estimation: bool = False
    """Whether the policy observes the anchor's place and the base's velocity, as a robot can that
    estimates them."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """At which frames episodes begin."""
    start: StartConfig = field(default_factory=StartConfig)
    """How far from its frame a robot begins."""
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    """Noise on what the policy observes."""
    random: RandomConfig = field(default_factory=RandomConfig)
    """How environments differ."""
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    """Weights of the reward terms."""
    widths: WidthsConfig = field(default_factory=WidthsConfig)
    """Errors at which rewards have fallen."""
    ends: EndsConfig = field(default_factory=EndsConfig)
    """Errors that end an episode."""


# With mjlab's deviation of 1, changes of the action cost a G1 more than following a clip earns, so
# that it learns to fall at once. With its adaptive rate, the rate stays at its lower bound.
AGENT = AgentConfig(
    num_steps_per_env=24,
    max_iterations=30_000,
    save_interval=500,
    actor=ActorConfig(
        hidden_dims=(512, 256, 128),
        obs_normalization=True,
        distribution=DistributionConfig(init_std=0.4),
    ),
    critic=CriticConfig(hidden_dims=(512, 256, 128), obs_normalization=True),
    algorithm=PPOConfig(schedule="fixed", learning_rate=3e-4, entropy_coef=0.005),
)
"""How a robot learns to follow clips."""
