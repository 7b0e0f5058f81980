"""Updates the statistics of networks in place, without waiting for the device. Runs in a worker."""

from itertools import chain
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from mjfleet.rl.equivariance import Mirror
from mjfleet.rl.learner import Learner
from mjfleet.rl.ranks.collectives import Collectives


@torch.no_grad()
def update_normalizers(alg: Any) -> None:
    """Add the stored rollouts of all ranks to the statistics of rsl_rl's observation normalisers.

    `EmpiricalNormalization.update` in rsl_rl computes the same, but waits for the device.
    Where weights are tied, the observations' mirror images count too. GRPO's critic learns nothing.
    """
    observations, collectives = alg.storage.observations.flatten(0, 1), alg.collectives
    networks = (alg.actor, alg.critic) if alg.config.learns_values else (alg.actor,)
    for network in (x for x in networks if x.obs_normalization and x.obs_groups):
        inputs = torch.cat([observations[group] for group in network.obs_groups], dim=-1)
        mirror = alg.equivariance and alg.equivariance.inputs[network]
        add_samples(network.obs_normalizer, inputs, collectives, mirror)


@torch.no_grad()
def add_samples(
    normalizer: Any, inputs: torch.Tensor, collectives: Collectives, mirror: Mirror | None = None
) -> None:
    """Add the samples `(samples, size)` of all ranks, and their images, to a normaliser."""
    var = torch.var(inputs, dim=0, unbiased=False, keepdim=True)
    mean = own_mean = torch.mean(inputs, dim=0, keepdim=True)
    own_count, count = len(inputs), len(inputs) * collectives.world_size
    if collectives.world_size > 1:
        mean = own_mean * own_count
        collectives.all_reduce(mean)
        mean = mean / count
        var = own_count * (var + (own_mean - mean).square())
        collectives.all_reduce(var)
        var = var / count
    if mirror:
        mean, var = mirror.add_image(mean, var)
    normalizer.count += count
    rate = torch.full_like(normalizer.count, count) / normalizer.count
    change = mean - normalizer._mean
    normalizer._mean += rate * change
    normalizer._var += rate * (var - normalizer._var + change * (mean - normalizer._mean))
    torch.sqrt(normalizer._var, out=normalizer._std)


@torch.no_grad()
def average_batch_statistics(learner: Learner) -> None:
    """Average the running statistics of batch normalisation, which each rank has of its samples."""
    networks = learner.networks().values() if learner.is_distributed else ()
    for layer in chain.from_iterable(network.modules() for network in networks):
        if isinstance(layer, _BatchNorm):
            for statistics in filter(torch.is_tensor, (layer.running_mean, layer.running_var)):
                learner.collectives.all_reduce(statistics)
                statistics.div_(learner.collectives.world_size)
