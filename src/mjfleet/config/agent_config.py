"""The learning agent: networks, PPO and the runner's settings, with rsl_rl's names."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from mjfleet.config.algorithm_config import Activation, PPOConfig
from mjfleet.config.validation import (
    FOLDER_NAME,
    LAYER_SIZES,
    Rule,
    above,
    at_least,
    between,
    check,
    optional,
)
from mjfleet.errors import UserError

Logger = Literal["tensorboard", "wandb", "none"]
Library = Literal["rsl_rl", "skrl", "skrl-jax"]


@dataclass(frozen=True, kw_only=True)
class DistributionConfig:
    """The action distribution at the actor's output."""

    flags: ClassVar[str] = "agent.actor.distribution."

    class_name: Literal["GaussianDistribution", "HeteroscedasticGaussianDistribution"] = (
        "GaussianDistribution"
    )
    """Gaussian with one standard deviation per action, or one that depends on the observation."""
    init_std: float = 1.0
    """Initial standard deviation, in units of the action."""
    std_type: Literal["scalar", "log"] = "scalar"
    """Whether the standard deviation or its logarithm is the learned parameter."""
    std_range: tuple[float, float] = (1e-6, 1e6)
    """Smallest and largest standard deviation."""
    learn_std: bool = True
    """Whether the standard deviation is learned (GaussianDistribution only)."""

    def __post_init__(self) -> None:
        ordered = Rule(lambda v: 0 < v[0] <= v[1], "two positive numbers, the smaller one first")
        check(self, init_std=above(0), std_range=ordered)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A network."""

    flags: ClassVar[str]

    class_name: Literal["MLPModel", "RNNModel"] = "MLPModel"
    """Feed-forward network, or one that begins with a recurrent layer."""
    hidden_dims: tuple[int, ...] = (256, 128, 64)
    """Sizes of the hidden layers."""
    activation: Activation = "elu"
    """Activation function between the layers."""
    obs_normalization: bool = False
    """Whether observations are normalised by their running mean and standard deviation."""
    rnn_type: Literal["lstm", "gru"] = "lstm"
    """Kind of recurrent layer (RNNModel only)."""
    rnn_hidden_dim: int = 256
    """Size of the recurrent state (RNNModel only)."""
    rnn_num_layers: int = 1
    """Number of recurrent layers (RNNModel only)."""

    def __post_init__(self) -> None:
        size = at_least(1)
        check(self, hidden_dims=LAYER_SIZES, rnn_hidden_dim=size, rnn_num_layers=size)


@dataclass(frozen=True, kw_only=True)
class ActorConfig(ModelConfig):
    """The policy network."""

    flags: ClassVar[str] = "agent.actor."

    distribution: DistributionConfig = field(default_factory=DistributionConfig)
    """The action distribution."""


@dataclass(frozen=True, kw_only=True)
class CriticConfig(ModelConfig):
    """The value network."""

    flags: ClassVar[str] = "agent.critic."


@dataclass(frozen=True, kw_only=True)
class ObsGroups:
    """Which of the environment's observation groups each network observes, in this order."""

    flags: ClassVar[str] = "agent.obs_groups."

    actor: tuple[str, ...] = ("actor",)
    """Groups that the policy observes."""
    critic: tuple[str, ...] = ("critic",)
    """Groups that the value network observes."""
    rnd_state: tuple[str, ...] = ("critic",)
    """Groups that random network distillation observes, if it is used."""

    def __post_init__(self) -> None:
        some = Rule(lambda v: len(v) > 0, "one or more observation groups")
        check(self, actor=some, critic=some, rnd_state=some)


@dataclass(frozen=True, kw_only=True)
class WandbConfig:
    """A run on Weights & Biases. W&B's own variables and settings apply to what is not set here."""

    flags: ClassVar[str] = "agent.wandb."

    project: str | None = None
    """Project; None: WANDB_PROJECT, else the experiment's name."""
    entity: str | None = None
    """User or team that owns the project; None: WANDB_ENTITY, else the login's."""
    group: str | None = None
    """Runs that are shown together, such as the seeds of one experiment; None: WANDB_RUN_GROUP."""
    tags: tuple[str, ...] = ()
    """Tags of the run; without any: WANDB_TAGS."""
    notes: str | None = None
    """Notes about the run; None: WANDB_NOTES."""
    mode: Literal["online", "offline", "disabled"] | None = None
    """Where the run is recorded: on the server, in the run directory, or nowhere; None:
    WANDB_MODE."""
    checkpoints: bool = False
    """Whether checkpoints are uploaded, as versions of the artifact `model-<id of the run>`."""

    def __post_init__(self) -> None:
        forbidden = "/\\#?%:"
        name = Rule(
            lambda v: 0 < len(v.strip()) <= 128 and not set(v) & set(forbidden),
            f"1 to 128 letters, none of {forbidden}",
        )
        label = Rule(lambda v: 0 < len(v.strip()) <= 64, "1 to 64 letters")
        tags = Rule(lambda v: all(map(label.holds, v)), f"tags of {label.allowed} each")
        check(self, project=optional(name), entity=optional(name), group=optional(name), tags=tags)


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """The learning agent: networks, algorithm, length of training, and logging."""

    flags: ClassVar[str] = "agent."

    library: Library = "rsl_rl"
    """Library whose PPO learns from the rollouts: rsl_rl, or skrl in PyTorch or in JAX."""
    seed: int = 1
    """Seed of all random numbers; worker r uses seed + r."""
    num_steps_per_env: int = 24
    """Steps of each environment per rollout."""
    max_iterations: int = 300
    """Number of iterations; each is one rollout and one policy update."""
    save_interval: int = 50
    """Iterations between checkpoints; the last iteration is always saved."""
    init_at_random_ep_len: bool = True
    """Whether environments start at random times of an episode, which spreads out time-outs."""
    experiment_name: str = ""
    """Folder under the log root for the runs of this experiment; empty: the task's name."""
    run_name: str = ""
    """Text appended to the run directory's name."""
    logger: tuple[Logger, ...] = ("tensorboard",)
    """Where metrics go besides metrics.csv: one or several, or `none`."""
    wandb: WandbConfig = field(default_factory=WandbConfig)
    """Weights & Biases, if it is among the loggers."""
    torch_compile_mode: Literal["default", "max-autotune-no-cudagraphs"] | None = None
    """Mode of torch.compile for the networks; None: not compiled."""
    obs_groups: ObsGroups = field(default_factory=ObsGroups)
    """Observation groups of each network."""
    actor: ActorConfig = field(default_factory=ActorConfig)
    """Policy network."""
    critic: CriticConfig = field(default_factory=CriticConfig)
    """Value network."""
    algorithm: PPOConfig = field(default_factory=PPOConfig)
    """PPO."""

    def __post_init__(self) -> None:
        count = at_least(1)
        check(self, seed=between(0, 2**31 - 1), num_steps_per_env=count, max_iterations=count)
        check(self, save_interval=count, experiment_name=FOLDER_NAME, run_name=FOLDER_NAME)
        loggers = Rule(
            lambda v: (
                v == ("none",) or (v and {*v} <= {"tensorboard", "wandb"} and len({*v}) == len(v))
            ),
            "`none` alone, or one or both of `tensorboard` and `wandb`, each once",
        )
        check(self, logger=loggers)
        if self.is_recurrent and self.algorithm.symmetry_cfg is not None:
            raise UserError(
                "--agent.algorithm.symmetry-cfg cannot be used with a recurrent network: choose "
                "MLPModel for --agent.actor.class-name and --agent.critic.class-name."
            )
        if self.library != "rsl_rl" and (unknown := self._unknown_to_skrl()):
            raise UserError(f"--agent.library {self.library} does not know {unknown}; rsl_rl does.")

    @property
    def is_recurrent(self) -> bool:
        """Whether a network has a memory."""
        return "RNNModel" in (self.actor.class_name, self.critic.class_name)

    @property
    def packages(self) -> tuple[str, ...]:
        """What the library needs of the extra `skrl`."""
        return {"rsl_rl": (), "skrl": ("skrl",), "skrl-jax": ("skrl", "jax", "flax", "optax")}[
            self.library
        ]

    def _unknown_to_skrl(self) -> str | None:
        """The first setting of these that skrl's PPO does not have, or has in another sense."""
        algorithm, distribution = self.algorithm, self.actor.distribution.class_name
        unknown = {
            "RNNModel (--agent.actor.class-name, --agent.critic.class-name)": self.is_recurrent,
            f"--agent.actor.distribution.class-name {distribution}": (
                distribution != "GaussianDistribution"
            ),
            f"--agent.algorithm.optimizer {algorithm.optimizer}": algorithm.optimizer != "adam",
            "--agent.algorithm.normalize-advantage-per-mini-batch": (
                algorithm.normalize_advantage_per_mini_batch
            ),
            "--agent.algorithm.use-mixed-precision": algorithm.use_mixed_precision,
            "--agent.algorithm.rnd-cfg": algorithm.rnd_cfg is not None,
            "--agent.algorithm.symmetry-cfg": algorithm.symmetry_cfg is not None,
            "--agent.torch-compile-mode": self.torch_compile_mode is not None,
        }
        return next((what for what, is_wanted in unknown.items() if is_wanted), None)
