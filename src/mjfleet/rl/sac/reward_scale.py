"""The divisor of rewards, so that critics can predict the return."""

import torch

from mjfleet.rl.learner import Learner
from mjfleet.rl.ranks.collectives import Collectives


class RewardScale:
    """The deviation of returns, or their largest size as a share of the critics' support.

    As in FlashSAC (arXiv:2604.04539); over all ranks.
    """

    def __init__(self, learner: Learner, num_envs: int) -> None:
        """Begin with a scale of 1, and declare what is remembered as state of the learner."""
        config, device = learner.config, learner.device
        self._gamma, self._largest = config.gamma, config.largest_return * config.support
        self.returns = torch.zeros(num_envs, device=device)
        """The discounted sum of past rewards of each environment's episode."""
        self.moments = torch.zeros(4, dtype=torch.float64, device=device)
        """Number, sum, sum of squares and largest size of `returns`."""
        self.scale = torch.ones((), device=device)
        self._recent = torch.zeros(learner.num_steps, num_envs, device=device)
        learner.add_state("returns", self.returns, "env")
        learner.add_state("return_moments", self.moments)
        learner.add_state("scale", self.scale)

    def record(self, step: int, rewards: torch.Tensor, dones: torch.Tensor) -> None:
        """Take the rewards of a step of a rollout, and where episodes end, `(num_envs,)` each."""
        self.returns.mul_(self._gamma).add_(rewards)
        self._recent[step] = self.returns
        self.returns.masked_fill_(dones, 0.0)

    def learn(self, collectives: Collectives) -> None:
        """Add the rollouts of all ranks to the moments, and compute the scale."""
        returns = self._recent.double()
        largest = returns.new_zeros(collectives.world_size)
        largest[collectives.rank] = returns.abs().max()
        number = torch.full_like(largest[:1], returns.numel())
        sums = torch.cat((number, returns.sum().view(1), returns.square().sum().view(1), largest))
        collectives.all_reduce(sums)
        moments = self.moments
        moments[:3] += sums[:3]
        torch.maximum(moments[3], sums[3:].max(), out=moments[3])
        mean = moments[1] / moments[0]
        deviation = (moments[2] / moments[0] - mean.square()).clamp(min=0.0).sqrt()
        scale = torch.maximum(deviation, moments[3] / self._largest)
        self.scale.copy_(scale.clamp(min=1e-6))
