"""Cart-pole of the DeepMind Control Suite (Tassa et al. 2018, arXiv:1801.00690)."""

from dataclasses import dataclass, replace

from mjfleet.config import (
    ActorConfig,
    AgentConfig,
    CnnConfig,
    CriticConfig,
    EnvConfig,
    ObsGroups,
    PPOConfig,
    Task,
)


@dataclass(frozen=True, kw_only=True)
class CartpoleConfig(EnvConfig):
    """Control at 20 Hz in episodes of 50 s, so 1000 steps of at most 1 each."""

    num_envs: int = 128
    """Environments per worker; `mjfleet tune` measures which number trains fastest."""
    decimation: int = 5
    """Physics steps (0.01 s each) per environment step; the action is held meanwhile."""
    episode_seconds: float = 50.0
    """Simulated seconds after which an episode times out."""
    swing_up: bool = False
    """Whether the pole starts hanging (swing-up) or near upright (balance)."""


AGENT = AgentConfig(
    num_steps_per_env=32,
    max_iterations=100,
    actor=ActorConfig(hidden_dims=(64, 64)),
    critic=CriticConfig(hidden_dims=(64, 64)),
    # What an action did shows within a second, 20 steps. With gamma 0.99, which looks ahead 100
    # steps, balance takes 1.4 times the samples, and swing-up fails in most seeds.
    # Returns reach 20 (discounted), far beyond a value clip of 0.2.
    algorithm=PPOConfig(gamma=0.95, entropy_coef=0.005, use_clipped_value_loss=False),
)
CNN = CnnConfig(output_channels=(16, 16), kernel_size=(8, 4), stride=(4, 2))
DEPTH_AGENT = replace(
    AGENT,
    obs_groups=ObsGroups(actor=("actor",), critic=("actor",)),
    actor=ActorConfig(class_name="CNNModel", cnn_cfg=CNN, hidden_dims=(64, 64)),
    critic=CriticConfig(class_name="CNNModel", cnn_cfg=CNN, hidden_dims=(64, 64)),
    max_iterations=500,
    # The encoder of images takes most of an update: three epochs instead of five.
    algorithm=replace(AGENT.ppo, num_learning_epochs=3, share_cnn_encoders=True),
)
SIZES = {"actor": 5, "critic": 5}

TASKS = {
    "cartpole-balance": Task(
        summary="Keep a pole upright on a cart that slides along a rail.",
        env=CartpoleConfig(),
        env_class="env:CartpoleEnv",
        agent=AGENT,
        num_actions=1,
        observation_sizes=SIZES,
    ),
    "cartpole-balance-depth": Task(
        summary="Keep the pole upright by two depth images of 32 x 32 pixels alone.",
        env=CartpoleConfig(episode_seconds=10.0),  # A pole that has fallen stays down.
        env_class="env:CartpoleDepthEnv",
        agent=DEPTH_AGENT,
        num_actions=1,
        observation_sizes={"actor": (2, 32, 32), "critic": (2, 32, 32)},
    ),
    "cartpole-swingup": Task(
        summary="Swing a hanging pole up and hold it upright on a sliding cart.",
        env=CartpoleConfig(swing_up=True),
        env_class="env:CartpoleEnv",
        agent=AGENT,
        num_actions=1,
        observation_sizes=SIZES,
    ),
}
