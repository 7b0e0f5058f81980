"""Updates rsl_rl's observation normalisers in place, without waiting for the device.

Runs in a worker. `EmpiricalNormalization.update` in rsl_rl computes the same, but copies a number
to the device, which waits for it.
"""

from typing import Any

import torch
from tensordict import TensorDict

from mjfleet.rl.collectives import Collectives
from mjfleet.rl.equivariance import Equivariance


@torch.no_grad()
def update_normalizers(
    networks: tuple[Any, ...],
    observations: TensorDict,
    collectives: Collectives,
    equivariance: Equivariance | None = None,
) -> None:
    """Add observations `(samples, size)` of all ranks to the statistics that networks keep.

    With `equivariance`, their mirror images count as observations too.
    """
    num_ranks = collectives.world_size
    for network in (network for network in networks if network.obs_normalization):
        inputs = torch.cat([observations[group] for group in network.obs_groups], dim=-1)
        var = torch.var(inputs, dim=0, unbiased=False, keepdim=True)
        mean = own_mean = torch.mean(inputs, dim=0, keepdim=True)
        own_count, count = len(inputs), len(inputs) * num_ranks
        if num_ranks > 1:
            mean = own_mean * own_count
            collectives.all_reduce(mean)
            mean = mean / count
            var = own_count * (var + (own_mean - mean).square())
            collectives.all_reduce(var)
            var = var / count
        if equivariance:
            mean, var = equivariance.inputs[network].add_image(mean, var)
        normalizer = network.obs_normalizer
        normalizer.count += count
        rate = torch.full_like(normalizer.count, count) / normalizer.count
        change = mean - normalizer._mean
        normalizer._mean += rate * change
        normalizer._var += rate * (var - normalizer._var + change * (mean - normalizer._mean))
        torch.sqrt(normalizer._var, out=normalizer._std)
