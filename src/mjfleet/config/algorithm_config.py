"""The configuration of every algorithm, and PPO's: its numbers, novelty rewards, symmetry."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, get_args

from mjfleet.config.field_kinds import Kind
from mjfleet.config.validation import (
    MAX_COUNT,
    Checked,
    Count,
    Fraction,
    LayerSizes,
    NotNegative,
    OptionalCount,
    Positive,
    between,
    class_or,
)
from mjfleet.errors import UserError

AlgorithmName = Literal["ppo", "grpo", "sac", "distillation"]
Activation = Literal[
    "elu", "selu", "relu", "crelu", "lrelu", "tanh", "sigmoid", "softplus", "gelu", "swish", "mish",
    "identity",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RndConfig(Checked, flags="agent.algorithm.rnd_cfg."):
    """Random network distillation, a reward for novelty (Burda et al. 2018, arXiv:1810.12894)."""

    weight: NotNegative = 1.0
    """Weight of the novelty reward, per second of simulated time."""
    num_outputs: Count = 16
    """Size of the embedding that the predictor learns to match."""
    predictor_hidden_dims: LayerSizes = (256, 256)
    """Hidden layers of the trained network."""
    target_hidden_dims: LayerSizes = (256, 256)
    """Hidden layers of the fixed random network."""
    activation: Activation = "elu"
    """Activation function of both networks."""
    state_normalization: bool = False
    """Whether the observations of the group `rnd_state` are normalised."""
    reward_normalization: bool = False
    """Whether the novelty reward is normalised."""
    learning_rate: Positive = 1e-3
    """Learning rate of the predictor."""


@dataclass(frozen=True, kw_only=True)
class SymmetryConfig(Checked, flags="agent.algorithm.symmetry_cfg."):
    """Equivariant networks, mirrored samples or a mirror loss (Mittal et al. 2024,
    arXiv:2403.04359)."""

    data_augmentation_func: str
    """`module:function` in the task folder that mirrors samples, with rsl_rl's signature."""
    use_equivariant_networks: bool = False
    """Whether tied weights make the networks exactly symmetric: mirrored actions, and the same
    value, for mirrored observations. Excludes the other two."""
    use_data_augmentation: bool = False
    """Whether each minibatch also contains its mirror image."""
    use_mirror_loss: bool = False
    """Whether a loss penalises asymmetry of the policy."""
    mirror_loss_coeff: NotNegative = 0.5
    """Weight of the mirror loss; with 0 it is only measured. From 0.1 to 1 is usual."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.use_equivariant_networks and (self.use_data_augmentation or self.use_mirror_loss):
            raise UserError(
                "--agent.algorithm.symmetry-cfg.use-equivariant-networks makes a policy symmetric "
                "by itself: use it without use-data-augmentation and use-mirror-loss."
            )


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig(Checked, flags="agent.algorithm."):
    """An algorithm. The class of a learner names a subclass of this one as its `Config`."""

    usual: ClassVar[Mapping[str, Any]] = {}
    """Values of a task's fields, by dotted name, that come with the algorithm."""
    usual_on_gpu: ClassVar[Mapping[str, Any]] = {}
    """Values of a new run on GPUs, by dotted name, unless the user gives others."""
    name: Annotated[AlgorithmName | str, class_or(*get_args(AlgorithmName)), Kind.CODE] = "ppo"
    """`ppo`, `grpo` (no critic: groups of environments are compared), `sac` (off-policy: it learns
    from a replay), `distillation` (the policy imitates the teacher of `--teacher`), or
    `module:Class`: a subclass of Learner in mjfleet.rl.learner or of rsl_rl's PPO, whose own
    numbers are then flags."""

    @classmethod
    def values_of_task(cls, usual: "AlgorithmConfig") -> dict[str, Any]:
        """Return values for this class's fields from the algorithm that the task configures."""
        if not issubclass(cls, type(usual)):
            return {}
        first = type(usual)()
        values = {field.name: getattr(usual, field.name) for field in fields(usual)}
        return {name: value for name, value in values.items() if value != getattr(first, name)}

    @property
    def envs_per_group(self) -> int:
        """Environments that are compared; 1: none are, and a critic predicts returns."""
        return 1

    @property
    def learns_values(self) -> bool:
        return True

    @property
    def mirrors_samples(self) -> bool:
        """Whether the policy learns from mirrored samples, or by a mirror loss."""
        return False

    def for_length(self, transitions: int) -> "AlgorithmConfig":
        """Return the configuration for a run of this length, in steps of all environments."""
        return self

    def for_run(self, begun: "AlgorithmConfig") -> "AlgorithmConfig":
        """Return the configuration with what `for_length` decided when the run began."""
        return self

    def check_rollouts(self, num_envs: int, steps: int, by_env: bool) -> None:
        """Raise UserError if a worker's rollouts cannot be learned from.

        `steps` are those of a rollout. `by_env`: environments are not divided among minibatches.
        """


@dataclass(frozen=True, kw_only=True)
class PPOConfig(AlgorithmConfig):
    """Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347), as in rsl_rl."""

    group_size: Annotated[int, between(2, MAX_COUNT)] = 8
    """Environments that start each rollout from one state and are compared (grpo only)."""
    num_learning_epochs: Count = 5
    """Passes over each rollout."""
    num_mini_batches: Count = 4
    """Minibatches per pass; each worker divides its own rollout."""
    learning_rate: Positive = 1e-3
    """Learning rate of the optimiser; with the adaptive schedule, the initial one."""
    schedule: Literal["adaptive", "fixed"] = "adaptive"
    """Whether the learning rate follows the KL divergence of each update."""
    desired_kl: Positive = 0.01
    """KL divergence that the adaptive schedule aims for."""
    gamma: Fraction = 0.99
    """Discount factor."""
    lam: Fraction = 0.95
    """Lambda of generalised advantage estimation."""
    clip_param: Positive = 0.2
    """Clipping range of the probability ratio and, if the value loss is clipped, of the value."""
    use_clipped_value_loss: bool = True
    """Whether the value loss is clipped like the policy's."""
    value_loss_coef: NotNegative = 1.0
    """Weight of the value loss."""
    entropy_coef: NotNegative = 0.01
    """Weight of the entropy bonus."""
    max_grad_norm: Positive = 1.0
    """Norm to which the gradient of the actor and that of the critic are each clipped."""
    optimizer: Literal["adam", "adamw", "sgd", "rmsprop"] = "adam"
    """Optimiser."""
    normalize_advantage_per_mini_batch: bool = False
    """Whether advantages are normalised per minibatch instead of over the whole rollout."""
    use_mixed_precision: bool = False
    """Whether forward pass and loss of an update use bfloat16 where that is safe."""
    share_cnn_encoders: bool = False
    """Whether actor and critic observe the same images and share one encoder."""
    rnd_cfg: RndConfig | None = None
    """Random network distillation; set in the task's configuration or in a file."""
    symmetry_cfg: SymmetryConfig | None = None
    """A robot's mirror symmetry; set in the task's configuration or in a file."""
    gradient_length: Count = 15
    """Steps whose losses add up to one gradient (distillation only)."""
    loss_type: Literal["mse", "huber"] = "mse"
    """Distance between the actions and the teacher's (distillation only)."""
    backprop: Annotated[Literal["auto", "autograd"], Kind.OPERATION] = "auto"
    """How gradients are computed. `auto`: in closed form, which is faster, where networks,
    distribution, precision and device (CPU) allow it, otherwise by autograd."""
    learning_threads: Annotated[OptionalCount, Kind.OPERATION] = None
    """CPU threads of an update in closed form; None: as many as help, at most the worker's."""

    @property
    def envs_per_group(self) -> int:
        return 1 if self.learns_values else self.group_size

    @property
    def ties_weights(self) -> bool:
        return self.symmetry_cfg is not None and self.symmetry_cfg.use_equivariant_networks

    @property
    def mirrors_samples(self) -> bool:
        cfg = self.symmetry_cfg
        return cfg is not None and (cfg.use_data_augmentation or cfg.use_mirror_loss)

    @property
    def learns_values(self) -> bool:
        return self.name != "grpo"

    def check_rollouts(self, num_envs: int, steps: int, by_env: bool) -> None:
        if self.name == "distillation":  # Without advantages and minibatches.
            if self.gradient_length > (total := self.num_learning_epochs * steps):
                raise UserError(
                    f"--agent.algorithm.gradient-length is {self.gradient_length}, more than the "
                    f"{total} steps of an update, --agent.algorithm.num-learning-epochs times "
                    "--agent.num-steps-per-env: nothing would be learned."
                )
            return
        if num_envs % self.envs_per_group:
            raise UserError(
                f"--agent.algorithm.group-size is {self.group_size}; it must divide the "
                f"{num_envs} environments of each worker."
            )
        samples, is_per_batch = num_envs * steps, self.normalize_advantage_per_mini_batch
        if samples // (self.num_mini_batches if is_per_batch else 1) < 2:
            raise UserError(
                f"a {'minibatch' if is_per_batch else 'rollout'} has one sample, whose advantage "
                "cannot be normalised: raise --env.num-envs or --agent.num-steps-per-env."
            )
        if self.num_mini_batches > (pieces := num_envs if by_env else samples):
            raise UserError(
                f"--agent.algorithm.num-mini-batches is {self.num_mini_batches}, more than the "
                f"{pieces} {'environments' if by_env else 'samples of a rollout'}."
            )
