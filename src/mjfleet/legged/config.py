"""The numbers of legged robots that follow velocity commands. Imports nothing heavy.

Defaults are those of the Unitree Go1 (tasks/go1/README.md); a task's config.py gives its own.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Annotated

from mjfleet.config import (
    ActorConfig,
    AgentConfig,
    CriticConfig,
    DistributionConfig,
    EnvConfig,
    PPOConfig,
    SymmetryConfig,
    Task,
)
from mjfleet.config.validation import (
    MAX_COUNT,
    ORDERED,
    Checked,
    Count,
    Fraction,
    NotNegative,
    Positive,
    PositiveRange,
    Range,
    Rule,
    between,
    check,
)
from mjfleet.errors import UserError

DelayRange = Annotated[tuple[int, int], ORDERED, Rule(lambda v: v[0] >= 0, "two numbers from 0 up")]


@dataclass(frozen=True, kw_only=True)
class CommandConfig(Checked, flags="env.command."):
    """Velocity commands."""

    forward: Range = (-1.0, 1.0)
    """Range of the forward velocity in m/s."""
    lateral: Range = (-1.0, 1.0)
    """Range of the lateral velocity in m/s, to the left."""
    yaw: Range = (-1.0, 1.0)
    """Range of the yaw rate in rad/s, to the left."""
    seconds: PositiveRange = (3.0, 8.0)
    """Range of the time between commands in s."""
    heading_share: Fraction = 0.3
    """Share of commands that name a heading, which then determines the yaw rate."""
    standing_share: Fraction = 0.1
    """Share of commands to stand still."""


@dataclass(frozen=True, kw_only=True)
class RandomConfig(Checked, flags="env.random."):
    """Randomisation; a range of zero width switches a variation off."""

    friction: PositiveRange = (0.4, 1.2)
    """Sliding friction of the feet."""
    payload: Range = (-1.0, 2.0)
    """Mass added to the base in kg."""
    center_of_mass: Range = (-0.03, 0.03)
    """Shift of the base's centre of mass in m, along each axis."""
    gains: PositiveRange = (0.9, 1.1)
    """Factor of the kp and kv of each motor."""
    strength: PositiveRange = (0.9, 1.1)
    """Factor of the torque limit of each motor."""
    delay: DelayRange = (0, 1)
    """Range of the delay of actions in environment steps, both ends included."""
    push_speed: NotNegative = 0.5
    """Largest change of velocity by a push in m/s, along x and y each."""
    push_seconds: PositiveRange = (5.0, 10.0)
    """Range of the time between pushes in s."""
    noise: NotNegative = 1.0
    """Factor of the noise on the policy's observations."""


@dataclass(frozen=True, kw_only=True)
class WeightsConfig(Checked, flags="env.weights."):
    """Weights of the reward terms, per second."""

    linear: float = 4.0
    """Following the commanded velocity."""
    yaw: float = 2.0
    """Following the commanded yaw rate."""
    upright: float = 1.0
    """Being upright."""
    fall: float = -2.0
    """A fall, counted once."""
    vertical: float = -1.0
    """Vertical velocity, squared."""
    tumbling: float = -0.05
    """Roll and pitch rates, squared."""
    torque: float = -2e-4
    """Torques, squared."""
    power: float = -3e-3
    """Absolute mechanical power of the motors in W, times the fourth power of the share of
    `linear` that is earned."""
    acceleration: float = -1e-7
    """Accelerations of the joints, squared."""
    jerk: float = -0.01
    """Changes of the action, squared."""
    air_time: float = 0.8
    """When a foot lands, its seconds in the air beyond `air_seconds`, at most 0.3."""
    slip: float = -0.1
    """Horizontal velocity of feet on the ground, squared."""
    pose: float = -0.1
    """Distance of the joints from the pose `home`, squared; ten times as much if the command is to
    stand still."""
    touch: float = -1.0
    """Contacts of anything but the feet and the base, at most 4."""


@dataclass(frozen=True, kw_only=True)
class BipedWeights(WeightsConfig, flags="env.weights."):
    """Weights of the reward terms of `BipedEnv`, per second."""

    swing: float = 3.0
    """Standing on one foot while the other swings, from `air_seconds` on for 0.3 s."""


@dataclass(frozen=True, kw_only=True)
class VelocityConfig(EnvConfig):
    """Control at 50 Hz in episodes of 20 s."""

    decimation: int = 4
    action_scale: Positive = 0.5
    """Angle in rad by which an action of 1 moves a joint's target from the pose `home`."""
    largest_action: Positive = 2.0
    """Bound of the actions of policies that have one, such as SAC's, where no joint's range is
    nearer: above the 97.5th percentile of what PPO's policies do (Go1 1.8, Go2 1.7)."""
    history: Count = 3
    """How many of the newest observations the policy observes at once."""
    tracking_width: Positive = 0.5
    """Error in m/s or rad/s at which a tracking reward has fallen to 1/e."""
    air_seconds: float = 0.1
    """Time in the air in s beyond which a step is rewarded."""
    command: CommandConfig = field(default_factory=CommandConfig)
    """Velocity commands."""
    random: RandomConfig = field(default_factory=RandomConfig)
    """Randomisation of environments and episodes."""
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    """Weights of the reward terms."""


@dataclass(frozen=True, kw_only=True)
class TerrainSharesConfig(Checked, flags="env.terrain_shares."):
    """Shares of the kinds of ground among the columns, in any unit. All 0: the first eight kinds,
    one column each. Figures are those of the highest level."""

    rough: NotNegative = 0.0
    """Random heights of up to 6 cm."""
    slope_up: NotNegative = 0.0
    """A pyramid with slopes of 0.4, on which robots start."""
    slope_down: NotNegative = 0.0
    """The same as a pit."""
    rough_slope: NotNegative = 0.0
    """A pyramid with random heights."""
    stairs_up: NotNegative = 0.0
    """A pyramid of ten steps, 14 cm high and 30 cm deep, on which robots start."""
    stairs_down: NotNegative = 0.0
    """The same as a pit."""
    blocks: NotNegative = 0.0
    """Adjacent blocks of 0.5 m, up to 10 cm high or deep."""
    obstacles: NotNegative = 0.0
    """Forty rectangles of 1 to 2 m, up to 14 cm high or deep."""
    flat: NotNegative = 0.0
    """Flat ground, on all levels."""
    gaps: NotNegative = 0.0
    """Three square gaps around the start, 40 cm wide and 50 cm deep."""
    ring: NotNegative = 0.0
    """A ring of posts around the start, 0.5 m wide, 0.5 m apart and up to 20 cm high."""


@dataclass(frozen=True, kw_only=True)
class RoughVelocityConfig(VelocityConfig):
    """The same on rough ground."""

    levels: Count = 8
    """Levels of difficulty of the ground."""
    columns: Count = 8
    """Tiles of each level."""
    terrain_shares: TerrainSharesConfig = field(default_factory=TerrainSharesConfig)
    """Shares of the kinds of ground."""
    start_levels: Count = 1
    """Number of levels, from the easiest on, at which environments begin."""
    terrain_scale: Positive = 1.0
    """Factor of all heights of the ground, which suit legs of 0.4 m."""
    terrain_seed: Annotated[int, between(0, MAX_COUNT)] = 0
    """Seed from which the ground is generated."""
    nconmax: int | None = 48
    njmax: int | None = 256  # Twice what a short run chooses, on the easier ground.

    def __post_init__(self) -> None:
        super().__post_init__()
        count = sum(share > 0 for share in vars(self.terrain_shares).values())
        allowed = f"at least {count}, one for each kind of ground that has a share"
        check(self, columns=Rule(lambda columns: columns >= count, allowed))


AGENT = AgentConfig(
    num_steps_per_env=8,
    max_iterations=2000,
    actor=ActorConfig(
        hidden_dims=(128, 128),
        obs_normalization=True,
        distribution=DistributionConfig(init_std=0.5),
    ),
    critic=CriticConfig(hidden_dims=(128, 128), obs_normalization=True),
    algorithm=PPOConfig(
        schedule="fixed",
        entropy_coef=0.002,
        use_clipped_value_loss=False,
        symmetry_cfg=SymmetryConfig(
            data_augmentation_func="env:mirror", use_equivariant_networks=True
        ),
    ),
)
"""How a quadruped learns, with networks that commute with its mirror image."""

# Without a weight on entropy, exploration ends before two of four G1s walk; with 0.002, deviations
# of 29 actions grow.
BIPED_AGENT = replace(
    AGENT, max_iterations=1500, algorithm=replace(AGENT.algorithm, entropy_coef=0.001)
)
"""How a robot on two legs learns."""


def velocity_tasks(
    name: str,
    robot: str,
    num_actions: int,
    flat: VelocityConfig | None = None,
    rough: RoughVelocityConfig | None = None,
    agent: AgentConfig = AGENT,
    terrain_scale: float = 1.0,
    rough_entropy: float = 3.0,
) -> dict[str, Task]:
    """Return the tasks `<name>-velocity-flat` and `<name>-velocity-rough` of a robot.

    The task's env.py defines `FlatEnv`, `RoughEnv` and `mirror`.

    Args:
        name: such as "go1".
        robot: such as "A Unitree Go1".
        num_actions: of its joints.
        flat: numbers on flat ground.
        rough: numbers on rough ground; None: those of `flat`, with `terrain_scale`, which then is
            no subclass of VelocityConfig with fields of its own.
        agent: how it learns on flat ground; on rough ground it does so for longer.
        terrain_scale: factor of the ground's heights.
        rough_entropy: factor of the weight on entropy on rough ground. With 1, a quadruped's
            exploration ends before it walks; with 3, that of a robot on two legs does not end.
    """
    flat = flat or VelocityConfig()
    if rough is None:
        if type(flat) is not VelocityConfig:
            raise UserError(f"velocity_tasks({name!r}): {type(flat).__name__} needs `rough`, too.")
        names = {field.name for field in fields(VelocityConfig)} - {"nconmax", "njmax"}
        same = {name: getattr(flat, name) for name in names}
        rough = RoughVelocityConfig(**same, terrain_scale=terrain_scale)
    algorithm = agent.algorithm
    if isinstance(algorithm, PPOConfig):
        algorithm = replace(algorithm, entropy_coef=rough_entropy * algorithm.entropy_coef)
    iterations = agent.max_iterations * 5 // 4
    return {
        f"{name}-velocity-flat": Task(
            summary=f"{robot} follows velocity commands on flat ground.",
            env=flat,
            env_class="env:FlatEnv",
            agent=agent,
            num_actions=num_actions,
        ),
        f"{name}-velocity-rough": Task(
            summary="The same on slopes, stairs and blocks that get harder as it improves.",
            env=rough,
            env_class="env:RoughEnv",
            agent=replace(agent, max_iterations=iterations, algorithm=algorithm),
            num_actions=num_actions,
        ),
    }
