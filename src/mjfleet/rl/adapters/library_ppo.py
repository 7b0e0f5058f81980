"""Lets the PPO of another library learn from rsl_rl's rollouts. Runs in a worker.

Networks, optimiser and checkpoints stay ours, so that a run can continue with another library.
Collectives average gradients and KL divergences; the library's own connection of ranks is off.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from mjfleet.rl.algorithm import Algorithm

Observations = dict[str, torch.Tensor]
"""Normalised observations of the networks `actor` and `critic`, `(..., size)`."""


class LibraryPPO(Algorithm, ABC):
    """Learns by a library's agent, whose gradients step our optimiser."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._last_observations: Any = None
        self.optimizer.register_step_pre_hook(self._finish_gradients)
        self.agent = self._make_agent()

    @abstractmethod
    def _make_agent(self) -> Any:
        """Build the library's agent from our networks, optimiser and settings."""

    @abstractmethod
    def _learn(self, observations: Observations, after: Observations) -> dict[str, float]:
        """Learn from the stored rollout; return this rank's losses `value`, `surrogate`, `entropy`.

        rsl_rl has added the values at time-outs to the stored rewards. `observations` are those of
        the rollout, `(steps, num_envs, size)`, and `after` those after it, `(num_envs, size)`.
        """

    def compute_returns(self, obs: TensorDict) -> None:
        """Keep the observations after the rollout: the library computes returns in its update."""
        self._last_observations = obs

    def update(self) -> dict[str, float]:
        """Learn from the stored rollout; return the mean losses of this rank."""
        observations = self.storage.observations
        losses = self._learn(self._inputs(observations), self._inputs(self._last_observations))
        for network in (self.actor, self.critic):
            network.update_normalization(observations.flatten(0, 1))
        self.storage.clear()
        return losses

    def _inputs(self, observations: TensorDict) -> Observations:
        networks = {"actor": self.actor, "critic": self.critic}
        return {name: network.get_latent(observations) for name, network in networks.items()}

    def _finish_gradients(self, *_: Any) -> None:
        """Average gradients over the ranks, then clip those of actor and critic, as rsl_rl does."""
        if self.is_distributed:
            self.reduce_parameters()
        for network in (self.actor, self.critic):
            nn.utils.clip_grad_norm_(network.parameters(), self.config.max_grad_norm)

    def _mean_kl(self, kl: float) -> float:
        """Return the mean over all ranks, so that all adapt their learning rates alike."""
        return self.collectives.total([kl])[0] / self.collectives.world_size
