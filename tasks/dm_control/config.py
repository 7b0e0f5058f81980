"""Tasks of the DeepMind Control Suite (Tassa et al. 2018, arXiv:1801.00690).

Models come from the wheel of dm_control; starts, observations and rewards are those of
dm_control/suite (Apache-2.0), but for the humanoid's help. docs/tasks-library.md lists them.
"""

from dataclasses import dataclass, replace
from functools import partial

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
    AGENT, max_iterations=2000, algorithm=replace(AGENT.algorithm, gamma=0.99, entropy_coef=0.02)
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
    env_class: str, sizes: tuple[int, int], agent: AgentConfig, summary: str, env: EnvConfig
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


pendulum = partial(_task, "arms:Pendulum", (1, 3), PENDULUM_AGENT)
acrobot = partial(_task, "arms:Acrobot", (1, 6), ACROBOT_AGENT)
reacher = partial(_task, "arms:Reacher", (2, 6), AGENT)
finger = partial(_task, "arms:Finger", (2, 9), AGENT)
cup = partial(_task, "arms:BallInCup", (2, 8), AGENT)
hopper = partial(_task, "bodies:Hopper", (4, 15), HOPPER_AGENT)
walker = partial(_task, "bodies:Walker", (6, 24), AGENT)
cheetah = partial(_task, "bodies:Cheetah", (6, 17), AGENT)
humanoid = partial(_task, "humanoid:Humanoid", (21, 67), HUMANOID_AGENT)

SHORT = SuiteConfig(decimation=1, episode_seconds=10.0)
REACHER = TargetConfig(decimation=1, episode_seconds=20.0)
HOPPER = SpeedConfig(decimation=4, episode_seconds=20.0)
WALKER = SpeedConfig(decimation=10, episode_seconds=25.0)
HUMANOID = HumanoidConfig(num_envs=256, decimation=5, episode_seconds=25.0)

TASKS = {
    "pendulum-swingup": pendulum(
        "Swing a pendulum up with a motor that is too weak to lift it at once.",
        SuiteConfig(decimation=1, episode_seconds=20.0),
    ),
    "acrobot-swingup": acrobot("Swing two links up by a motor between them.", SHORT),
    "reacher-easy": reacher("Keep the fingertip of a planar arm in a large target.", REACHER),
    "reacher-hard": reacher(
        "Keep the fingertip of a planar arm in a small target.", replace(REACHER, target_size=0.015)
    ),
    "finger-spin": finger(
        "Keep a body on a hinge spinning by flicks of a finger.",
        SuiteConfig(decimation=2, episode_seconds=20.0),
    ),
    "ball_in_cup-catch": cup(
        "Catch a ball on a string with a cup.", SuiteConfig(decimation=10, episode_seconds=20.0)
    ),
    "hopper-stand": hopper("Stand on one leg.", HOPPER),
    "hopper-hop": hopper("Hop forward on one leg at 2 m/s.", replace(HOPPER, speed=2.0)),
    "walker-stand": walker("Stand on two legs in a plane.", WALKER),
    "walker-walk": walker("Walk on two legs in a plane at 1 m/s.", replace(WALKER, speed=1.0)),
    "walker-run": walker("Run on two legs in a plane at 8 m/s.", replace(WALKER, speed=8.0)),
    "cheetah-run": cheetah("Run in a plane at 10 m/s.", SHORT),
    "humanoid-stand": humanoid("Get a humanoid to stand up and to keep still.", HUMANOID),
    "humanoid-walk": humanoid("Get a humanoid to walk at 1 m/s.", replace(HUMANOID, speed=1.0)),
    "humanoid-run": humanoid("Get a humanoid to run at 10 m/s.", replace(HUMANOID, speed=10.0)),
}
