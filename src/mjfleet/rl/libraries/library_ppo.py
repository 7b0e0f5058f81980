"""Lets the PPO of another library learn from our rollouts. Runs in a worker.

Networks, optimiser and checkpoints are ours, so that a run can continue with another library.
Collectives average gradients and KL divergences; the library's own connection of ranks is off.
"""

from abc import abstractmethod
from typing import Any

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from mjfleet.rl.learner import Setup, Step
from mjfleet.rl.rollout_learner import RolloutLearner


class LibraryPPO(RolloutLearner):
    """Learns by a library's agent, whose gradients step our optimiser."""

    usual_alone = (
        "actor.class_name", "critic.class_name", "algorithm.name", "actor.distribution.class_name",
        "algorithm.optimizer", "algorithm.normalize_advantage_per_mini_batch",
        "algorithm.use_mixed_precision", "algorithm.backprop", "algorithm.learning_threads",
    )  # fmt: skip

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        parameters = *self.actor.parameters(), *self.critic.parameters()
        self.optimizer = torch.optim.Adam(parameters, lr=self.learning_rate)
        self.optimizer.register_step_pre_hook(self._finish_gradients)
        self.agent = self._make_agent()
        self.scratch(*vars(self))

    @abstractmethod
    def _make_agent(self) -> Any:
        """Build the library's agent from our networks, optimiser and settings."""

    @abstractmethod
    def _update(self, seen: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
        """Learn from the stored rollout; return this rank's losses `value`, `surrogate`, `entropy`.

        The values at time-outs are in the stored rewards. `seen` are the normalised observations of
        `actor` and `critic`, `(steps, num_envs, size)`; `after`, `(num_envs, size)`, those after.
        """

    def act(self, obs: TensorDict) -> torch.Tensor:
        self.actor.distribution.update(self.actor.mlp(self.actor.get_latent(obs)))
        mean, std = self.actor.output_distribution_params
        # The same bits as torch.normal, which would wait for a GPU.
        return torch.randn_like(mean) * std + mean

    def record(self, before: TensorDict, actions: torch.Tensor, step: Step) -> None:
        actor, new, values = self.actor, RolloutStorage.Transition(), self.critic(before)
        new.observations, new.actions, new.dones, new.values = before, actions, step.dones, values
        new.distribution_params = actor.output_distribution_params  # Those of `act`.
        new.actions_log_prob = actor.get_output_log_prob(actions)
        # As in rsl_rl, for the rewards that a time-out cuts off stands the value before it.
        new.rewards = step.rewards + self.config.gamma * values[:, 0] * step.time_outs
        self.storage.add_transition(new)
        self._after = step.observations

    def _learn(self) -> dict[str, float]:
        seen, networks = self.storage.observations, self._networks.items()
        inputs = ({k: x.get_latent(obs) for k, x in networks} for obs in (seen, self._after))
        losses = self._update(*inputs)
        for _, network in networks:
            network.update_normalization(seen.flatten(0, 1))
        self.storage.clear()
        return losses

    def _finish_gradients(self, *_: Any) -> None:
        """Average gradients over the ranks, then clip those of actor and critic, as rsl_rl does."""
        self.reduce_parameters()
        for network in (self.actor, self.critic):
            torch.nn.utils.clip_grad_norm_(network.parameters(), self.config.max_grad_norm)
