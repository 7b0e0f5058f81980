"""Updates rsl_rl's observation normalisers in place, without waiting for the device.

Runs in a worker. `EmpiricalNormalization.update` in rsl_rl computes the same, but copies a number
to the device, which waits for it.
"""

import torch

from mjfleet.rl.algorithm import Algorithm


@torch.no_grad()
def update_normalizers(alg: Algorithm) -> None:
    """Add the stored rollouts of all ranks to the networks' statistics, if they keep any.

    Where weights are tied, the observations' mirror images count too. GRPO's critic learns nothing.
    """
    observations, collectives = alg.storage.observations.flatten(0, 1), alg.collectives
    networks = (alg.actor, alg.critic) if alg.config.learns_values else (alg.actor,)
    for network in (network for network in networks if network.obs_normalization):
        inputs = torch.cat([observations[group] for group in network.obs_groups], dim=-1)
        var = torch.var(inputs, dim=0, unbiased=False, keepdim=True)
        mean = own_mean = torch.mean(inputs, dim=0, keepdim=True)
        own_count, count = len(inputs), len(inputs) * collectives.world_size
        if alg.is_distributed:
            mean = own_mean * own_count
            collectives.all_reduce(mean)
            mean = mean / count
            var = own_count * (var + (own_mean - mean).square())
            collectives.all_reduce(var)
            var = var / count
        if alg.equivariance:
            mean, var = alg.equivariance.inputs[network].add_image(mean, var)
        normalizer = network.obs_normalizer
        normalizer.count += count
        rate = torch.full_like(normalizer.count, count) / normalizer.count
        change = mean - normalizer._mean
        normalizer._mean += rate * change
        normalizer._var += rate * (var - normalizer._var + change * (mean - normalizer._mean))
        torch.sqrt(normalizer._var, out=normalizer._std)
