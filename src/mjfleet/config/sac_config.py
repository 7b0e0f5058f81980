"""Hyperparameters of SAC."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from mjfleet.config.algorithm_config import AlgorithmConfig, PPOConfig, SymmetryConfig
from mjfleet.config.field_kinds import Kind
from mjfleet.config.validation import (
    Count,
    Fraction,
    LayerSizes,
    Positive,
    Rule,
    between,
    check,
    optional,
)
from mjfleet.errors import UserError

UPDATES = optional(Rule(lambda v: 0 < v <= 100, "greater than 0, at most 100"))
SHORT_RUN = 300_000
"""Transitions up to which a run makes an update for each, as published curves do."""


@dataclass(frozen=True, kw_only=True)
class SACConfig(AlgorithmConfig):
    """Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905) with distributional critics, as in
    FlashSAC (arXiv:2604.04539)."""

    usual: ClassVar[Mapping[str, Any]] = {
        "env.num_envs": 96, "agent.num_steps_per_env": 3, "agent.save_interval": 400,
    }  # fmt: skip
    usual_on_gpu: ClassVar[Mapping[str, Any]] = {
        "env.num_envs": 1024,
        "agent.num_steps_per_env": 8,
        "agent.save_interval": 2000,
        "agent.algorithm.batch_size": 2048,
        "agent.algorithm.updates_per_transition": 4 / 1024,
        "agent.algorithm.n_step": 3,
        "agent.algorithm.warm_up": 100_000,
        "agent.algorithm.replay_size": 2_000_000,
        "agent.algorithm.critic_hidden_dims": [256, 256],
    }

    name: Annotated[str, Kind.CODE] = "sac"
    gamma: Fraction = 0.99
    """Discount factor of a step; 0.97 or 0.99 in FlashSAC."""
    n_step: Count = 1
    """Steps whose rewards are summed before the critic's prediction; 1 or 3 in FlashSAC."""
    batch_size: Count = 256
    """Samples of an update, of all workers together, rounded down to a multiple of these; 256 in
    Haarnoja et al. 2018."""
    updates_per_transition: Annotated[float | None, UPDATES] = None
    """Updates for each step of each environment; 1 learns most from a sample, a GPU's thousands of
    environments need far fewer, such as 1/256. `None`: 1, or 0.25 where the run is to have more
    than 300,000 such steps."""
    replay_size: Count = 1_000_000
    """Transitions that all workers together remember; a million in Haarnoja et al. 2018."""
    warm_up: Count = 5_000
    """Transitions before the first update, in which the untrained policy acts; 5,000 in CleanRL's
    SAC."""
    save_replay: Annotated[bool, Kind.OPERATION] = True
    """Whether checkpoints hold the replay."""
    noise_memory: Count = 16
    """Steps in which the noise of exploration changes, at most: pink noise (Eberhard et al. 2023,
    ICLR); 1: each step's is independent."""
    symmetry_cfg: SymmetryConfig | None = None
    """A robot's mirror symmetry, by which half of each batch is mirrored; set by the task."""
    actor_delay: Count = 2
    """Updates of the critics for one of the actor (Fujimoto et al. 2018, arXiv:1802.09477)."""
    actor_hidden_dims: LayerSizes = (128, 128)
    """Hidden layers of the policy; 128 wide in FlashSAC."""
    critic_hidden_dims: LayerSizes = (128, 128)
    """Hidden layers of each of the two critics; 256 wide in FlashSAC, on GPUs."""
    share_cnn_encoders: bool = False
    """Whether actor and critics, which then observe the same images, encode them by one network,
    which the critics' loss teaches (Yarats et al. 2021, arXiv:1910.01741)."""
    num_atoms: Annotated[int, between(2, 1001)] = 101
    """Values at which a critic predicts probabilities, as in FlashSAC."""
    support: Annotated[float, between(0.001, 1_000_000)] = 5.0
    """Largest scaled return that a critic can predict, as in FlashSAC."""
    largest_return: Annotated[float, between(0.01, 1)] = 0.8
    """Share of the support that the largest return so far takes, at most, once it is scaled."""
    first_return_std: Annotated[float, between(0.001, 10)] = 0.1
    """Deviation of the return that critics predict at first, as a share of the support."""
    learning_rate: Positive = 1e-3
    """Learning rate of actor, critics and temperature, at first; 0.0003 in FlashSAC."""
    learning_rate_end_factor: Annotated[float, between(0.001, 1)] = 0.1
    """What the learning rate is multiplied by at the end of the run, to which it falls along a
    cosine, as in FlashSAC; 1: it is constant."""
    tau: Annotated[float, Rule(lambda v: 0 < v <= 1, "above 0, at most 1")] = 0.01
    """Share of the critics that the target critics take over in an update, as in FlashSAC."""
    initial_temperature: Positive = 0.01
    """Weight of the entropy at first, as in FlashSAC."""
    target_std: Annotated[float, between(0.001, 0.47)] = 0.15
    """Deviation of actions, as a share of their limits, whose entropy the temperature aims at, as
    in FlashSAC; above 0.47 hardly a policy has that entropy."""
    log_std_min: Annotated[float, between(-20, 10)] = -5.0
    """Least logarithm of the policy's deviation before tanh, as in CleanRL's SAC."""
    log_std_max: Annotated[float, between(-20, 10)] = 2.0
    """Greatest logarithm of the policy's deviation before tanh, as in CleanRL's SAC."""
    first_actions: Annotated[float, between(0, 1)] = 0.01
    """Factor of the weights of the policy's last layer at first, in tasks that say `zero_is_home`;
    0 in FastSAC (arXiv:2512.01996)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        most = f"at most --agent.algorithm.replay-size, {self.replay_size}"
        more = f"more than --agent.algorithm.log-std-min, {self.log_std_min:g}"
        check(
            self,
            batch_size=Rule(lambda size: size <= self.replay_size, most),
            log_std_max=Rule(lambda bound: bound > self.log_std_min, more),
        )
        symmetry = self.symmetry_cfg
        if symmetry and (symmetry.use_equivariant_networks or symmetry.use_mirror_loss):
            raise UserError(
                "--agent.algorithm.symmetry-cfg: sac mirrors samples; choose use-data-augmentation "
                "alone, without use-equivariant-networks and use-mirror-loss."
            )

    @classmethod
    def values_of_task(cls, usual: AlgorithmConfig) -> dict[str, Any]:
        if not (isinstance(usual, PPOConfig) and usual.symmetry_cfg):
            return super().values_of_task(usual)
        function = usual.symmetry_cfg.data_augmentation_func
        symmetry = SymmetryConfig(data_augmentation_func=function, use_data_augmentation=True)
        return super().values_of_task(usual) | {"symmetry_cfg": symmetry}

    def for_length(self, transitions: int) -> "SACConfig":
        if self.updates_per_transition is not None:
            return self
        return replace(self, updates_per_transition=1.0 if transitions <= SHORT_RUN else 0.25)

    def for_run(self, begun: AlgorithmConfig) -> "SACConfig":
        if self.updates_per_transition is not None or not isinstance(begun, SACConfig):
            return self
        return replace(self, updates_per_transition=begun.updates_per_transition)

    @property
    def mirrors_samples(self) -> bool:
        return self.symmetry_cfg is not None and self.symmetry_cfg.use_data_augmentation
