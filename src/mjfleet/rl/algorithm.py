"""The interface of the training loop to learning algorithms. Runs in a worker."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from rsl_rl import algorithms
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from mjfleet.config import AgentConfig
from mjfleet.rl.collectives import Collectives
from mjfleet.rl.gradient_reduction import FlatGradient

LEARNING_RATES = (1e-5, 1e-2)
"""Limits of the adaptive schedule, as in rsl_rl."""


class Algorithm(ABC):
    """Learns with the networks, optimiser and storage that rsl_rl builds.

    Collecting, returns and checkpoints are rsl_rl's unless a subclass overrides them; `update` is
    the subclass's own. All ranks take the same steps, because they have the same parameters and
    reduce their gradients. Advantages are normalised over the rollouts of all ranks. rsl_rl's
    observation normalisers reduce their moments over all ranks by themselves.
    """

    torch_threads: int
    """torch's own threads during an update."""

    def __init__(
        self,
        parts: algorithms.PPO,
        agent: AgentConfig,
        collectives: Collectives,
        num_threads: int,
    ) -> None:
        """Use what rsl_rl has built.

        Args:
            parts: rsl_rl's algorithm, see `rsl_rl_adapter.build_parts`.
            agent: the configuration from which it was built.
            collectives: connects the ranks.
            num_threads: CPU threads that an update may use.
        """
        self.parts = parts
        self.config = agent.algorithm
        self.collectives = collectives
        self.torch_threads = num_threads
        self.device: str = parts.device
        self.actor: Any = parts.get_policy()
        self.critic: Any = parts._raw_critic
        self.rnd = parts.rnd
        self.optimizer: Any = parts.optimizer
        self.storage: RolloutStorage = parts.storage
        self.on_minibatch: Callable[[], object] = lambda: None
        """Called before each minibatch."""
        optimizers: list[Any] = [self.optimizer, *([self.rnd.optimizer] if self.rnd else [])]
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        self.gradient = FlatGradient(p for group in groups for p in group["params"])

    @abstractmethod
    def update(self) -> dict[str, float]:
        """Learn from the stored rollout; return the mean losses."""

    @property
    def is_distributed(self) -> bool:
        """Whether there are several ranks."""
        return self.collectives.world_size > 1

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return self.parts.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self.parts.learning_rate = rate
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    @property
    def is_adaptive(self) -> bool:
        """Whether the learning rate follows the KL divergence."""
        return self.config.schedule == "adaptive"

    def act(self, obs: TensorDict) -> torch.Tensor:
        """Sample actions `(num_envs, num_actions)`; store them and the observations."""
        return self.parts.act(obs)

    def process_env_step(
        self, obs: TensorDict, rewards: torch.Tensor, dones: torch.Tensor, extras: dict[str, Any]
    ) -> None:
        """Store the outcome of the actions: rewards and dones `(num_envs,)`, time-outs."""
        self.parts.process_env_step(obs, rewards, dones, extras)

    def compute_returns(self, obs: TensorDict) -> None:
        """Compute returns and advantages; `obs` are the observations after the rollout.

        If advantages are normalised in each minibatch, each rank does that by itself.
        """
        self.parts.compute_returns(obs)
        if not self.is_distributed or self.config.normalize_advantage_per_mini_batch:
            return
        advantages = self.storage.returns - self.storage.values
        wide = advantages.double()
        count, total, squares = self.collectives.total(
            [wide.numel(), wide.sum().item(), wide.square().sum().item()]
        )
        mean = total / count
        std = max(0.0, (squares - total * mean) / (count - 1)) ** 0.5
        self.storage.advantages = (advantages - mean) / (std + 1e-8)

    def reduce_parameters(self) -> None:
        """Average the gradients of all parameters over the ranks, in one all-reduce.

        A parameter that has no gradient on a rank counts as zero there.
        """
        self.gradient.average(self.collectives)

    def adapt_learning_rate(self, kl: float) -> None:
        """Steer the KL divergence towards `desired_kl` by rsl_rl's rule and factors."""
        if kl > self.config.desired_kl * 2.0:
            self.learning_rate = max(LEARNING_RATES[0], self.learning_rate / 1.5)
        elif 0.0 < kl < self.config.desired_kl / 2.0:
            self.learning_rate = min(LEARNING_RATES[1], self.learning_rate * 1.5)

    def train_mode(self) -> None:
        """Switch the networks to training."""
        self.parts.train_mode()

    def eval_mode(self) -> None:
        """Switch the networks to evaluation."""
        self.parts.eval_mode()

    def broadcast_parameters(self) -> None:
        """Give every rank the parameters of rank 0."""
        self.parts.broadcast_parameters()

    def save(self) -> dict[str, Any]:
        """Return networks and optimiser in rsl_rl's format."""
        return self.parts.save()

    def load(self, state: dict[str, Any], load_cfg: dict[str, bool] | None, strict: bool) -> bool:
        """Load rsl_rl's format; `load_cfg` names the parts to load, None: all.

        Returns:
            Whether the iteration is to be loaded too.
        """
        return self.parts.load(state, load_cfg, strict)
