"""A rollout's samples, shuffled into minibatches that keep their addresses. Runs in a worker."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from rsl_rl.storage import RolloutStorage

from mjfleet.config import PPOConfig


class Minibatch(NamedTuple):
    """Samples of a rollout; the first dimension of each tensor is the sample."""

    actor_inputs: torch.Tensor  # Normalised observations of the policy network, (samples, size).
    critic_inputs: torch.Tensor  # Those of the value network, (samples, size); 0 without one.
    actions: torch.Tensor  # (samples, num_actions)
    values: torch.Tensor  # Predicted before the update, (samples, 1).
    returns: torch.Tensor  # (samples, 1)
    advantages: torch.Tensor  # (samples,)
    log_probs: torch.Tensor  # Of the actions when they were sampled, (samples,).
    means: torch.Tensor  # Of the action distribution in the rollout, (samples, num_actions).
    stds: torch.Tensor  # Standard deviations of the same distribution, (samples, num_actions).
    limits: torch.Tensor
    """The largest value that PPO's clipped objective can take, `(samples,)`: the advantage times
    `1 + clip` where the advantage is positive, times `1 - clip` where it is negative."""

    def rows(self, rows: slice) -> "Minibatch":
        """Return views of some samples."""
        if rows.start == 0 and rows.stop >= len(self.actions):
            return self
        return Minibatch(*(field[rows] for field in self))

    def blocks(self, size: int) -> Iterator["Minibatch"]:
        """Return views of at most `size` samples each."""
        for start in range(0, len(self.actions), size):
            yield self.rows(slice(start, start + size))


class Minibatches:
    """The minibatches of an update. Every epoch visits the same ones, as in rsl_rl.

    Each update fills the same tensors, because CUDA graphs read from fixed addresses.
    """

    def __init__(self, actor: Any, critic: Any, storage: RolloutStorage, config: PPOConfig) -> None:
        """Allocate the minibatches for the rollouts of `storage`; a remainder is left out."""
        self._actor, self._storage, self.config = actor, storage, config
        self._critic = critic = critic if config.learns_values else None
        count = config.num_mini_batches
        size = storage.num_envs * storage.num_transitions_per_env // count
        num_actions = storage.actions.shape[-1]
        shapes = (
            *((actor.obs_dim,), (critic.obs_dim if critic else 0,), (num_actions,)),
            *((1,), (1,), (), ()),
            *((num_actions,), (num_actions,), ()),
        )
        samples = [torch.zeros(count * size, *shape, device=storage.device) for shape in shapes]
        self._samples = Minibatch(*samples)
        self.batches = [self._samples.rows(slice(i * size, (i + 1) * size)) for i in range(count)]

    def fill(self) -> None:
        """Shuffle the rollout into the minibatches, which may normalise their own advantages."""
        storage, samples, critic = self._storage, self._samples, self._critic
        observations = storage.observations.flatten(0, 1)
        steps = (storage.actions, storage.values, storage.returns, storage.advantages)
        sources = [
            self._actor.get_latent(observations),
            critic.get_latent(observations) if critic else storage.actions.flatten(0, 1)[:, :0],
            *(field.flatten(0, 1) for field in (*steps, storage.actions_log_prob)),
            *(field.flatten(0, 1) for field in storage.distribution_params or ()),
        ]
        # The same random numbers as in rsl_rl's generator of minibatches.
        order = torch.randperm(len(samples.actions), device=storage.device)
        for source, target in zip(sources, samples, strict=False):
            rows = source.view(len(source), *target.shape[1:])
            torch.index_select(rows, 0, order, out=target)
        if self.config.normalize_advantage_per_mini_batch:
            for batch in self.batches:
                mean, std = batch.advantages.mean(), batch.advantages.std()
                batch.advantages.sub_(mean).div_(std + 1e-8)
        advantages, clip = samples.advantages, self.config.clip_param
        torch.add(advantages, advantages.abs(), alpha=clip, out=samples.limits)
