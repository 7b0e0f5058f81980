"""Hyperparameters of the learning algorithm: PPO, random network distillation, symmetry."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from mjfleet.config.validation import LAYER_SIZES, above, at_least, between, check, optional

Activation = Literal[
    "elu", "selu", "relu", "crelu", "lrelu", "tanh", "sigmoid", "softplus", "gelu", "swish", "mish",
    "identity",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RndConfig:
    """Random network distillation, a reward for novelty (Burda et al. 2018, arXiv:1810.12894)."""

    flags: ClassVar[str] = "agent.algorithm.rnd_cfg."

    weight: float = 1.0
    """Weight of the novelty reward, per second of simulated time."""
    num_outputs: int = 16
    """Size of the embedding that the predictor learns to match."""
    predictor_hidden_dims: tuple[int, ...] = (256, 256)
    """Hidden layers of the trained network."""
    target_hidden_dims: tuple[int, ...] = (256, 256)
    """Hidden layers of the fixed random network."""
    activation: Activation = "elu"
    """Activation function of both networks."""
    state_normalization: bool = False
    """Whether the observations of the group `rnd_state` are normalised."""
    reward_normalization: bool = False
    """Whether the novelty reward is normalised."""
    learning_rate: float = 1e-3
    """Learning rate of the predictor."""

    def __post_init__(self) -> None:
        check(self, weight=at_least(0), num_outputs=at_least(1), learning_rate=above(0))
        check(self, predictor_hidden_dims=LAYER_SIZES, target_hidden_dims=LAYER_SIZES)


@dataclass(frozen=True, kw_only=True)
class SymmetryConfig:
    """Mirrored samples and a mirror loss (Mittal et al. 2024, arXiv:2403.04359)."""

    flags: ClassVar[str] = "agent.algorithm.symmetry_cfg."

    data_augmentation_func: str
    """`module:function` in the task folder that mirrors samples, with rsl_rl's signature."""
    use_data_augmentation: bool = False
    """Whether each minibatch also contains its mirror image."""
    use_mirror_loss: bool = False
    """Whether the policy is penalised where it is not symmetric."""
    mirror_loss_coeff: float = 0.0
    """Weight of the mirror loss."""

    def __post_init__(self) -> None:
        check(self, mirror_loss_coeff=at_least(0))


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347), as in rsl_rl."""

    flags: ClassVar[str] = "agent.algorithm."

    num_learning_epochs: int = 5
    """Passes over each rollout."""
    num_mini_batches: int = 4
    """Minibatches per pass; each worker divides its own rollout."""
    learning_rate: float = 1e-3
    """Learning rate of the optimiser; with the adaptive schedule, the initial one."""
    schedule: Literal["adaptive", "fixed"] = "adaptive"
    """Whether the learning rate follows the KL divergence of each update."""
    desired_kl: float = 0.01
    """KL divergence that the adaptive schedule aims for."""
    gamma: float = 0.99
    """Discount factor."""
    lam: float = 0.95
    """Lambda of generalised advantage estimation."""
    clip_param: float = 0.2
    """Clipping range of the probability ratio and, if the value loss is clipped, of the value."""
    use_clipped_value_loss: bool = True
    """Whether the value loss is clipped like the policy's."""
    value_loss_coef: float = 1.0
    """Weight of the value loss."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""
    max_grad_norm: float = 1.0
    """Norm to which the gradient of the actor and that of the critic are each clipped."""
    optimizer: Literal["adam", "adamw", "sgd", "rmsprop"] = "adam"
    """Optimiser."""
    normalize_advantage_per_mini_batch: bool = False
    """Whether advantages are normalised per minibatch instead of over the whole rollout."""
    use_mixed_precision: bool = False
    """Whether forward pass and loss use bfloat16 where that is safe."""
    rnd_cfg: RndConfig | None = None
    """Random network distillation; set in the task's configuration or in a file."""
    symmetry_cfg: SymmetryConfig | None = None
    """Symmetry augmentation; set in the task's configuration or in a file."""
    backprop: Literal["auto", "closed-form", "autograd"] = "auto"
    """How gradients are computed: in closed form, which is faster, or by autograd. `auto`: in
    closed form where the networks, the distribution and the device (CPU) allow it."""
    learning_threads: int | None = None
    """CPU threads that share an update in closed form; None: as many as help, at most the worker's
    share of the cores."""

    def __post_init__(self) -> None:
        count, share, weight = at_least(1), between(0, 1), at_least(0)
        check(self, num_learning_epochs=count, num_mini_batches=count, gamma=share, lam=share)
        check(self, learning_rate=above(0), desired_kl=above(0), max_grad_norm=above(0))
        check(self, clip_param=above(0), value_loss_coef=weight, entropy_coef=weight)
        check(self, learning_threads=optional(count))
