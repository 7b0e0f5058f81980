"""A rollout's samples, shuffled into minibatches. Runs in a worker."""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from mjfleet.config import PPOConfig
from mjfleet.rl.networks import image_groups, numbers_of


class Minibatch(NamedTuple):
    """Samples of a rollout; the first dimension of each tensor is the sample."""

    samples: torch.Tensor
    """Indices into the rollout, step * num_envs + environment, `(samples,)`, int64."""
    actor_inputs: torch.Tensor
    """Normalised observations of the policy network, `(samples, size)`. The output of its
    convolutions follows, which is computed for each minibatch, with gradients."""
    critic_inputs: torch.Tensor
    """Those of the value network, `(samples, size)`; size 0 where no values are learned."""
    actions: torch.Tensor
    """`(samples, num_actions)`"""
    values: torch.Tensor
    """Predicted before the update, `(samples, 1)`."""
    returns: torch.Tensor
    """`(samples, 1)`"""
    advantages: torch.Tensor
    """`(samples,)`"""
    log_probs: torch.Tensor
    """Logarithmic probabilities of the actions when they were sampled, `(samples,)`."""
    distribution: tuple[torch.Tensor, ...]
    """Parameters of the action distribution in the rollout, such as mean and standard deviation of
    a Gaussian, `(samples, num_actions)` each."""

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> "Minibatch":
        """Return the results of a function for each tensor."""
        others = {
            name: function(value)
            for name, value in self._asdict().items()
            if name != "distribution"
        }
        return Minibatch(**others, distribution=tuple(map(function, self.distribution)))

    def rows(self, start: int, stop: int) -> "Minibatch":
        if start == 0 and stop >= len(self.actions):
            return self
        return self.map(lambda field: field[start:stop])

    def blocks(self, size: int) -> Iterator["Minibatch"]:
        """Return views of at most `size` samples each."""
        for start in range(0, len(self.actions), size):
            yield self.rows(start, start + size)

    def tensors(self) -> list[torch.Tensor]:
        return [*self[:-1], *self.distribution]


class Minibatches:
    """The minibatches of an update. Every epoch visits the same ones, as in rsl_rl."""

    def __init__(self, actor: Any, critic: Any, storage: RolloutStorage, config: PPOConfig) -> None:
        """Allocate the minibatches for the rollouts of `storage`; a remainder is left out."""
        self._actor, self._storage, self.config = actor, storage, config
        self._critic = critic if config.learns_values else None
        count = config.num_mini_batches
        size = storage.num_envs * storage.num_transitions_per_env // count
        self._samples = self._rollout().map(lambda field: torch.empty_like(field[: count * size]))
        self.batches = [self._samples.rows(i * size, (i + 1) * size) for i in range(count)]
        self.taken = self.batches[0].map(torch.clone)
        """The minibatch of the next gradients."""
        networks = filter(None, (self._actor, self._critic))
        groups = chain.from_iterable(map(image_groups, networks))
        images = {name: storage.observations.get(name).flatten(0, 1) for name in groups}
        self._images = {name: (x, torch.empty_like(x[:size])) for name, x in images.items()}
        """All images of a group, and room for those of a minibatch, whose address is fixed."""

    def fill(self) -> None:
        """Shuffle the rollout into the minibatches, which may normalise their own advantages."""
        # The same random numbers as in rsl_rl's generator of minibatches.
        order = torch.randperm(len(self._samples.actions), device=self._storage.device)
        pairs = zip(self._rollout().tensors(), self._samples.tensors(), strict=True)
        for source, target in pairs:
            torch.index_select(source, 0, order, out=target)
        if self.config.normalize_advantage_per_mini_batch:
            for batch in self.batches:
                mean, std = batch.advantages.mean(), batch.advantages.std()
                batch.advantages.sub_(mean).div_(std + 1e-8)

    def take(self, batch: Minibatch, copies: bool) -> None:
        """Let the next gradients be those of `batch`; copy it for a graph, which reads from fixed
        addresses."""
        if copies:
            torch.ops.aten._foreach_copy_(self.taken.tensors(), batch.tensors())
        else:
            self.taken = batch

    @property
    def has_images(self) -> bool:
        """Whether a network encodes images."""
        return bool(self._images)

    def encode(self, batch: Minibatch) -> Minibatch:
        """Return a minibatch whose inputs have its images, encoded by the networks as they are."""
        if not self.has_images:
            return batch
        for images, room in self._images.values():
            torch.index_select(images, 0, batch.samples, out=room)
        codes: dict[Any, torch.Tensor] = {}  # Networks may share an encoder.

        def join(network: Any, numbers: torch.Tensor) -> torch.Tensor:
            parts = [numbers]
            for name in image_groups(network):
                encoder = network.cnns[name]
                if (encoder, name) not in codes:
                    codes[encoder, name] = encoder(self._images[name][1])
                parts.append(codes[encoder, name])
            return torch.cat(parts, dim=-1) if len(parts) > 1 else numbers

        return batch._replace(
            actor_inputs=join(self._actor, batch.actor_inputs),
            critic_inputs=join(self._critic, batch.critic_inputs),
        )

    def latents_of(self, network: Any, observations: TensorDict) -> torch.Tensor:
        """Return what a network's layers get; images are encoded by parts of a minibatch's size."""
        if not image_groups(network):
            return network.get_latent(observations)
        parts = observations.split(len(self.taken.actions))
        return torch.cat([network.get_latent(part) for part in parts])

    @torch.no_grad()
    def _rollout(self) -> Minibatch:
        """Return the samples of the rollout, in its order."""
        storage, critic = self._storage, self._critic
        observations, actions = storage.observations.flatten(0, 1), storage.actions.flatten(0, 1)
        return Minibatch(
            samples=torch.arange(len(actions), device=storage.device),
            actor_inputs=numbers_of(self._actor, observations),
            critic_inputs=numbers_of(critic, observations) if critic else actions[:, :0],
            actions=actions,
            values=storage.values.flatten(0, 1),
            returns=storage.returns.flatten(0, 1),
            advantages=storage.advantages.flatten(),
            log_probs=storage.actions_log_prob.flatten(),
            distribution=tuple(p.flatten(0, 1) for p in storage.distribution_params or ()),
        )


@torch.no_grad()
def room_for_distribution(actor: Any, storage: RolloutStorage) -> tuple[torch.Tensor, ...]:
    """Return zeros for the parameters of the actions' distribution, `(steps, num_envs, ...)`."""
    actor.eval()
    actor.distribution.update(actor.mlp(actor.get_latent(storage.observations[0])))
    actor.train()
    steps = storage.num_transitions_per_env
    return tuple(p.new_zeros(steps, *p.shape) for p in actor.output_distribution_params)


@torch.no_grad()
def forget_nodes(alg: Any, inputs: torch.Tensor) -> None:
    """Leave none of autograd's nodes in an algorithm and its actor, by one sample of `inputs`.

    They belong to the stream of this call, with which a capture on another cannot synchronise.
    """
    actor = alg.actor
    actor.eval()  # Nothing remembers the sample; batch normalisation would refuse a single one.
    actor.distribution.update(actor.mlp(inputs[:1]))
    actor.train()
    for name, value in vars(alg).items() if alg.has_own_loss else ():
        if isinstance(value, torch.Tensor) and value.grad_fn is not None:
            setattr(alg, name, value.detach())
