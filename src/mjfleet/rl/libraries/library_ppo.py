"""Lets the PPO of another library learn from our rollouts. Runs in a worker.

Networks, optimiser and checkpoints are ours, so that a run can continue with another library.
Collectives average gradients and KL divergences; the library's own connection of ranks is off.
"""

from abc import abstractmethod
from itertools import chain
from typing import Any

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import nn

from mjfleet.rl.learner import Setup, Step
from mjfleet.rl.networks import build_networks, make_storage
from mjfleet.rl.rollout_learner import RolloutLearner
from mjfleet.sim.deferred import Deferred

Inputs = dict[str, torch.Tensor]
"""What the networks `actor` and `critic` observe, normalised, `(..., size)`."""


class LibraryPPO(RolloutLearner):
    """Learns by a library's agent, whose gradients step our optimiser."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        networks, _ = build_networks(setup.env, setup.agent, setup.device, setup.load)
        self.hold(networks)
        self.actor, self.critic = networks["actor"], networks["critic"]
        self.storage = make_storage(setup.env, setup.agent, setup.device)
        self.schedule, self.learning_rate = self.config.schedule, self.config.learning_rate
        parameters = chain(self.actor.parameters(), self.critic.parameters())
        self.optimizer = torch.optim.Adam(parameters, lr=self.learning_rate)
        self.optimizer.register_step_pre_hook(self._finish_gradients)
        self.agent = self._make_agent()
        self.scratch(*vars(self))

    @abstractmethod
    def _make_agent(self) -> Any:
        """Build the library's agent from our networks, optimiser and settings."""

    @abstractmethod
    def _update(self, seen: Inputs, after: Inputs) -> dict[str, float]:
        """Learn from the stored rollout; return this rank's losses `value`, `surrogate`, `entropy`.

        The values at time-outs are in the stored rewards. `seen` are the inputs of the rollout,
        `(steps, num_envs, size)`, and `after` those after it, `(num_envs, size)`.
        """

    def act(self, obs: TensorDict) -> torch.Tensor:
        actor = self.actor
        actor.distribution.update(actor.mlp(actor.get_latent(obs)))
        mean, std = actor.output_distribution_params
        # The same bits as torch.normal, which would wait for a GPU.
        return torch.randn_like(mean) * std + mean

    def record(self, before: TensorDict, actions: torch.Tensor, step: Step) -> None:
        actor, new = self.actor, RolloutStorage.Transition()
        new.observations, new.actions, new.dones = before, actions, step.dones
        new.distribution_params = actor.output_distribution_params  # Those of `act`.
        new.actions_log_prob = actor.get_output_log_prob(actions)
        new.values = values = self.critic(before)
        # As in rsl_rl, for the rewards that a time-out cuts off stands the value before it.
        new.rewards = step.rewards + self.config.gamma * values[:, 0] * step.time_outs
        self.storage.add_transition(new)
        self._after = step.observations

    def learn(self) -> Deferred[dict[str, float]]:
        seen = self.storage.observations
        losses = self._update(self._inputs(seen), self._inputs(self._after))
        for network in (self.actor, self.critic):
            network.update_normalization(seen.flatten(0, 1))
        self.storage.clear()
        self.learning_rate = float(self.optimizer.param_groups[0]["lr"])
        return Deferred(torch.zeros(0, device=self.device), lambda numbers: losses)

    def _inputs(self, obs: TensorDict) -> Inputs:
        return {"actor": self.actor.get_latent(obs), "critic": self.critic.get_latent(obs)}

    def _finish_gradients(self, *_: Any) -> None:
        """Average gradients over the ranks, then clip those of actor and critic, as rsl_rl does."""
        self.reduce_parameters()
        for network in (self.actor, self.critic):
            nn.utils.clip_grad_norm_(network.parameters(), self.config.max_grad_norm)

    def _mean_kl(self, kl: float) -> float:
        """Return the mean over all ranks, so that all adapt their learning rates alike."""
        return self.collectives.total([kl])[0] / self.collectives.world_size
