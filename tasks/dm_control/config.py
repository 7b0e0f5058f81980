"""Tasks of the DeepMind Control Suite (Tassa et al. 2018, arXiv:1801.00690).

Models come from the wheel of dm_control; starts, observations and rewards are those of
dm_control/suite (Apache-2.0), but for the humanoid's help. docs/tasks-library.md lists them.
"""

from dataclasses import dataclass, replace

from mjfleet.config import (
    ActorConfig,
    AgentConfig,
    CriticConfig,
    DistributionConfig,
    EnvConfig,
    PPOConfig,
    Task,
)
from mjfleet.config.validation import NotNegative, Positive


@dataclass(frozen=True, kw_only=True)
class SuiteConfig(EnvConfig):
    """Episodes of 1000 steps, which only time ends. A step earns at most 1; with help, 1.3."""

    num_envs: int = 128
    """Environments per worker; `mjfleet tune` measures which number trains fastest."""


@dataclass(frozen=True, kw_only=True)
class TargetConfig(SuiteConfig):
    """An arm that reaches for a target."""

    target_size: Positive = 0.05
    """Radius of the target in m."""


@dataclass(frozen=True, kw_only=True)
class SpeedConfig(SuiteConfig):
    """A body that stands, or moves at a speed or faster."""

    speed: NotNegative = 0.0
    """Speed in m/s from which on the reward is full; 0: standing is the task."""


@dataclass(frozen=True, kw_only=True)
class HumanoidConfig(SpeedConfig):
    """A humanoid that falls at first, and has to get up."""

    curriculum: bool = True
    """Whether humanoids that stay on the ground get help in training: stronger motors, and a reward
    for a high head; docs/tasks-library.md."""


AGENT = AgentConfig(
    num_steps_per_env=32,
    max_iterations=500,
    actor=ActorConfig(hidden_dims=(128, 128), obs_normalization=True),
    critic=CriticConfig(hidden_dims=(128, 128), obs_normalization=True),
    algorithm=PPOConfig(
        # Normalised observations move while their statistics are new, which the adaptive schedule
        # takes for changes of the policy: the walker's rate falls to 1e-5 in the first iteration.
        schedule="fixed",
        # With half the rate, or a discount of 0.99, the walker learns to walk more slowly.
        learning_rate=1e-3,
        gamma=0.995,
        entropy_coef=0.01,
        use_clipped_value_loss=False,  # Discounted returns reach 200, a value clip is 0.2.
    ),
)


# With half AGENT's learning rate, gamma 0.99 and entropy_coef 0.005, policies learned to spin the
# pendulum through the top all the time. With the numbers below, but entropy_coef 0.005, one of
# three seeds had not learned to balance it after 3 million steps.
PENDULUM_AGENT = replace(AGENT, algorithm=replace(AGENT.algorithm, gamma=0.97, entropy_coef=0.02))
# With AGENT's gamma and entropy_coef, the acrobot's return stayed at 40 for 8 million steps.
ACROBOT_AGENT = replace(
    AGENT,
    max_iterations=2000,
    algorithm=replace(AGENT.algorithm, gamma=0.99, entropy_coef=0.02),
)
# The hopper's return passes 20 after 0.4 to 2.9 million steps.
HOPPER_AGENT = replace(AGENT, max_iterations=1250)
HUMANOID_AGENT = replace(
    AGENT,
    max_iterations=1250,
    # With a standard deviation of 1, humanoids that start upright do not learn to stay so.
    actor=replace(AGENT.actor, distribution=DistributionConfig(init_std=0.5)),
    algorithm=replace(AGENT.algorithm, learning_rate=5e-4, entropy_coef=0.001),
)


def _task(
    summary: str,
    env_class: str,
    env: EnvConfig,
    sizes: tuple[int, int],
    agent: AgentConfig = AGENT,
) -> Task:
    """Return a task with `sizes` of its actions and observations."""
    actions, observations = sizes
    return Task(
        summary=summary,
        env=env,
        env_class=env_class,
        agent=agent,
        num_actions=actions,
        observation_sizes={"actor": observations, "critic": observations},
        extra="suite",
        packages=("dm_control",),
    )


REACHER = TargetConfig(decimation=1, episode_seconds=20.0)
HOPPER = SpeedConfig(decimation=4, episode_seconds=20.0)
WALKER = SpeedConfig(decimation=10, episode_seconds=25.0)
HUMANOID = HumanoidConfig(num_envs=256, decimation=5, episode_seconds=25.0)

TASKS = {
    "pendulum-swingup": _task(
        "Swing a pendulum up with a motor that is too weak to lift it at once.",
        "arms:Pendulum",
        SuiteConfig(decimation=1, episode_seconds=20.0),
        (1, 3),
        PENDULUM_AGENT,
    ),
    "acrobot-swingup": _task(
        "Swing two links up by a motor between them.",
        "arms:Acrobot",
        SuiteConfig(decimation=1, episode_seconds=10.0),
        (1, 6),
        ACROBOT_AGENT,
    ),
    "reacher-easy": _task(
        "Keep the fingertip of a planar arm in a large target.",
        "arms:Reacher",
        REACHER,
        (2, 6),
    ),
    "reacher-hard": _task(
        "Keep the fingertip of a planar arm in a small target.",
        "arms:Reacher",
        replace(REACHER, target_size=0.015),
        (2, 6),
    ),
    "finger-spin": _task(
        "Keep a body on a hinge spinning by flicks of a finger.",
        "arms:Finger",
        SuiteConfig(decimation=2, episode_seconds=20.0),
        (2, 9),
    ),
    "ball_in_cup-catch": _task(
        "Catch a ball on a string with a cup.",
        "arms:BallInCup",
        SuiteConfig(decimation=10, episode_seconds=20.0),
        (2, 8),
    ),
    "hopper-stand": _task(
        "Stand on one leg.",
        "bodies:Hopper",
        HOPPER,
        (4, 15),
        HOPPER_AGENT,
    ),
    "hopper-hop": _task(
        "Hop forward on one leg at 2 m/s.",
        "bodies:Hopper",
        replace(HOPPER, speed=2.0),
        (4, 15),
        HOPPER_AGENT,
    ),
    "walker-stand": _task(
        "Stand on two legs in a plane.",
        "bodies:Walker",
        WALKER,
        (6, 24),
    ),
    "walker-walk": _task(
        "Walk on two legs in a plane at 1 m/s.",
        "bodies:Walker",
        replace(WALKER, speed=1.0),
        (6, 24),
    ),
    "walker-run": _task(
        "Run on two legs in a plane at 8 m/s.",
        "bodies:Walker",
        replace(WALKER, speed=8.0),
        (6, 24),
    ),
    "cheetah-run": _task(
        "Run in a plane at 10 m/s.",
        "bodies:Cheetah",
        SuiteConfig(decimation=1, episode_seconds=10.0),
        (6, 17),
    ),
    "humanoid-stand": _task(
        "Get a humanoid to stand up and to keep still.",
        "humanoid:Humanoid",
        HUMANOID,
        (21, 67),
        HUMANOID_AGENT,
    ),
    "humanoid-walk": _task(
        "Get a humanoid to walk at 1 m/s.",
        "humanoid:Humanoid",
        replace(HUMANOID, speed=1.0),
        (21, 67),
        HUMANOID_AGENT,
    ),
    "humanoid-run": _task(
        "Get a humanoid to run at 10 m/s.",
        "humanoid:Humanoid",
        replace(HUMANOID, speed=10.0),
        (21, 67),
        HUMANOID_AGENT,
    ),
}
