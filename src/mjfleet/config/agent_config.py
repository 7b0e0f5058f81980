"""The learning agent: networks, PPO and the runner's settings, with rsl_rl's names."""

from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from mjfleet.config.algorithm_config import Activation, AlgorithmConfig, PPOConfig
from mjfleet.config.field_kinds import Kind
from mjfleet.config.validation import (
    COUNT,
    Checked,
    Count,
    FolderName,
    LayerSizes,
    Positive,
    PositiveRange,
    Rule,
    between,
    check,
    class_or,
    optional,
)
from mjfleet.errors import UserError

Logger = Literal["tensorboard", "wandb", "none"]
Model = Literal["MLPModel", "RNNModel", "CNNModel"]
Library = Literal["rsl_rl", "skrl", "skrl-jax", "rl_games"]
NOT_IN_NAMES = "/\\#?%:"
NAME = Rule(
    lambda v: 0 < len(v.strip()) <= 128 and not set(v) & set(NOT_IN_NAMES),
    f"1 to 128 letters, none of {NOT_IN_NAMES}",
)
Name = Annotated[str | None, optional(NAME)]
LABEL = Rule(lambda v: 0 < len(v.strip()) <= 64, "1 to 64 letters")
TAGS = Rule(lambda v: all(map(LABEL.holds, v)), f"tags of {LABEL.allowed} each")
LOGGERS = Rule(
    lambda v: v == ("none",) or (v and {*v} <= {"tensorboard", "wandb"} and len({*v}) == len(v)),
    "`none` alone, or one or both of `tensorboard` and `wandb`, each once",
)
Sizes = Annotated[
    tuple[int, ...], Rule(lambda v: v and all(map(COUNT.holds, v)), f"one or more, {COUNT.allowed}")
]
HOOK = optional(class_or())
Groups = Annotated[tuple[str, ...], Rule(lambda v: len(v) > 0, "one or more observation groups")]


@dataclass(frozen=True, kw_only=True)
class DistributionConfig(Checked, flags="agent.actor.distribution."):
    """The action distribution at the actor's output."""

    class_name: Literal["GaussianDistribution", "HeteroscedasticGaussianDistribution"] = (
        "GaussianDistribution"
    )
    """Gaussian with one standard deviation per action, or one that depends on the observation."""
    init_std: Positive = 1.0
    """Initial standard deviation, in units of the action."""
    std_type: Literal["scalar", "log"] = "scalar"
    """Whether the standard deviation or its logarithm is the learned parameter."""
    std_range: PositiveRange = (1e-6, 1e6)
    """Smallest and largest standard deviation."""
    learn_std: bool = True
    """Whether the standard deviation is learned (GaussianDistribution only)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.std_range
        between = Rule(
            lambda v: low <= v <= high, f"in --{self.flags}std-range, {low:g} to {high:g}"
        )
        check(self, init_std=between)


@dataclass(frozen=True, kw_only=True)
class CnnConfig(Checked, flags="agent.(actor|critic).cnn_cfg."):
    """Convolutional layers before a network, for each group of images; names are rsl_rl's."""

    output_channels: Sizes
    """Channels after each layer."""
    kernel_size: Sizes = (3,)
    """Width of each layer's kernel, or one for all."""
    stride: Sizes = (1,)
    """Stride of each layer, or one for all."""
    padding: Literal["none", "zeros", "reflect", "replicate", "circular"] = "none"
    """How images are padded."""
    norm: Literal["none", "batch", "layer"] = "none"
    """Normalisation after each layer."""
    activation: Activation = "elu"
    """Activation function after each layer."""
    max_pool: bool = False
    """Whether each layer ends with max-pooling by 2."""
    global_pool: Literal["none", "max", "avg"] = "none"
    """Pooling of the last layer over the image."""

    def __post_init__(self) -> None:
        super().__post_init__()
        count = len(self.output_channels)
        same = Rule(
            lambda v: len(v) in (1, count), f"one number, or one for each of {count} layers"
        )
        check(self, kernel_size=same, stride=same)


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Checked):
    """A network."""

    class_name: Annotated[Model | str, class_or(*get_args(Model)), Kind.CODE] = "MLPModel"
    """`MLPModel` (feed-forward), `RNNModel` (begins with a recurrent layer), `CNNModel` (begins
    with convolutions of images), or `module:Class`: a subclass of one of rsl_rl's models."""
    hidden_dims: LayerSizes = (256, 128, 64)
    """Sizes of the hidden layers."""
    activation: Activation = "elu"
    """Activation function between the layers."""
    obs_normalization: bool = False
    """Whether observations are normalised by their running mean and standard deviation."""
    rnn_type: Literal["lstm", "gru"] = "lstm"
    """Kind of recurrent layer (RNNModel only)."""
    rnn_hidden_dim: Count = 256
    """Size of the recurrent state (RNNModel only)."""
    rnn_num_layers: Count = 1
    """Number of recurrent layers (RNNModel only)."""
    cnn_cfg: CnnConfig | None = None
    """Convolutional layers (CNNModel only); set in the task's configuration or in a file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.class_name == "CNNModel" and self.cnn_cfg is None:
            raise UserError(
                f"--{self.flags.replace('_', '-')}class-name is CNNModel, which needs cnn_cfg with "
                "its layers, in the task's configuration or in a file."
            )


@dataclass(frozen=True, kw_only=True)
class ActorConfig(ModelConfig, flags="agent.actor."):
    """The policy network."""

    distribution: DistributionConfig = field(default_factory=DistributionConfig)
    """The action distribution."""


@dataclass(frozen=True, kw_only=True)
class TeacherConfig(ActorConfig, flags="agent.teacher."):
    """The policy that the student imitates. `--teacher` sets all of these fields from a run."""

    checkpoint: Annotated[str | None, Kind.SOURCE] = None
    """File of the teacher's checkpoint."""
    obs_groups: Groups = ("actor",)
    """Observation groups that the teacher observes."""


@dataclass(frozen=True, kw_only=True)
class CriticConfig(ModelConfig, flags="agent.critic."):
    """The value network."""


@dataclass(frozen=True, kw_only=True)
class ObsGroups(Checked, flags="agent.obs_groups."):
    """Which of the environment's observation groups each network observes, in this order."""

    actor: Groups = ("actor",)
    """Groups that the policy observes."""
    critic: Groups = ("critic",)
    """Groups that the value network observes."""
    rnd_state: Groups = ("critic",)
    """Groups that random network distillation observes, if it is used."""


@dataclass(frozen=True, kw_only=True)
class WandbConfig(Checked, flags="agent.wandb."):
    """A run on Weights & Biases. W&B's own variables and settings apply to fields without value."""

    project: Annotated[Name, Kind.PLACEMENT] = None
    """Project; None: WANDB_PROJECT, else the experiment's name."""
    entity: Annotated[Name, Kind.PLACEMENT] = None
    """User or team that owns the project; None: WANDB_ENTITY, else the user who is logged in."""
    group: Annotated[Name, Kind.OPERATION] = None
    """Name under which W&B shows runs together, such as seeds; None: WANDB_RUN_GROUP."""
    tags: Annotated[tuple[str, ...], TAGS, Kind.OPERATION] = ()
    """Tags of the run; without any: WANDB_TAGS."""
    notes: Annotated[str | None, Kind.OPERATION] = None
    """Notes about the run; None: WANDB_NOTES."""
    mode: Annotated[Literal["online", "offline", "disabled"] | None, Kind.PLACEMENT] = None
    """Record the run on the server, in the run directory, or nowhere; None: WANDB_MODE."""
    checkpoints: Annotated[bool, Kind.PLACEMENT] = False
    """Whether checkpoints are uploaded, as versions of the artifact `model-<id of the run>`."""


@dataclass(frozen=True, kw_only=True)
class AgentConfig(Checked, flags="agent."):
    """The learning agent: networks, algorithm, length of training, and logging."""

    library: Library = "rsl_rl"
    """Library whose PPO learns from the rollouts: rsl_rl, skrl (PyTorch or JAX), or rl_games."""
    seed: Annotated[int, between(0, 2**31 - 1)] = 1
    """Seed of all random numbers; worker r uses seed + r."""
    tf32: Annotated[bool, Kind.OPERATION] = True
    """Whether GPUs round the factors of matrix products to TensorFloat-32 (10 bits), which is
    faster."""
    cuda_graphs: Annotated[bool, Kind.OPERATION] = True
    """Whether GPUs run the parts of an update as CUDA graphs, which is faster."""
    num_steps_per_env: Count = 24
    """Steps of each environment per rollout."""
    max_iterations: Annotated[Count, Kind.OPERATION] = 300
    """Number of iterations; each is one rollout and one policy update."""
    save_interval: Annotated[Count, Kind.OPERATION] = 50
    """Iterations between checkpoints; the last iteration is always saved."""
    init_at_random_ep_len: bool = True
    """Whether environments start at random times of an episode, which spreads out time-outs."""
    experiment_name: Annotated[FolderName, Kind.NAME] = ""
    """Folder under the log root for the runs of this experiment; empty: the task's name."""
    run_name: Annotated[FolderName, Kind.NAME] = ""
    """Text appended to the run directory's name."""
    logger: Annotated[tuple[Logger, ...], LOGGERS, Kind.PLACEMENT] = ("tensorboard",)
    """Loggers of the metrics besides metrics.csv: one or several, or `none`."""
    wandb: WandbConfig = field(default_factory=WandbConfig)
    """Weights & Biases, if it is among the loggers."""
    torch_compile_mode: Annotated[
        Literal["default", "max-autotune-no-cudagraphs"] | None, Kind.OPERATION
    ] = None
    """Mode of torch.compile for the networks; None: not compiled."""
    obs_groups: ObsGroups = field(default_factory=ObsGroups)
    """Observation groups of each network."""
    actor: ActorConfig = field(default_factory=ActorConfig)
    """Policy network."""
    critic: CriticConfig = field(default_factory=CriticConfig)
    """Value network."""
    algorithm: AlgorithmConfig = field(default_factory=PPOConfig)
    """The algorithm and its numbers: PPO, another built-in one, or a class of your own."""
    teacher: TeacherConfig | None = None
    """The teacher in distillation, see `--teacher`."""
    runner_hook: Annotated[str | None, HOOK, Kind.CODE] = None
    """`module:Class`: a subclass of RunnerHook, which is called between the parts of training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        learning = self.algorithm
        if self.is_recurrent and learning.mirrors_samples:
            raise UserError(
                "--agent.algorithm.symmetry-cfg cannot be used with a recurrent network: choose "
                "MLPModel for --agent.actor.class-name and --agent.critic.class-name."
            )
        if self.distils and (self.ppo.rnd_cfg or learning.mirrors_samples):
            raise UserError(
                "--agent.algorithm.name distillation takes neither rnd-cfg nor symmetry-cfg."
            )

    @property
    def ppo(self) -> PPOConfig:
        """PPO's configuration; its defaults if another algorithm learns."""
        return self.algorithm if isinstance(self.algorithm, PPOConfig) else PPOConfig()

    @property
    def is_recurrent(self) -> bool:
        return "RNNModel" in (self.actor.class_name, self.critic.class_name)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of algorithm, networks and hook; a user's class has the form `module:Class`."""
        names = self.algorithm.name, self.actor.class_name, self.critic.class_name
        return (*names, self.runner_hook) if self.runner_hook else names

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages of the optional dependency `extra` that the library needs."""
        return {
            "rsl_rl": (),
            "skrl": ("skrl",),
            "skrl-jax": ("skrl", "jax", "flax", "optax"),
            "rl_games": ("rl_games",),
        }[self.library]

    @property
    def extra(self) -> str:
        """The optional dependency that installs `packages`."""
        return "rl-games" if self.library == "rl_games" else "skrl"

    @property
    def distils(self) -> bool:
        return self.algorithm.name == "distillation"
