"""PPO's loss gradients in closed form, computed by several CPU threads. Runs in a worker.

They exist for networks of linear layers and a Gaussian with one standard deviation per action.
They need neither autograd nor new large tensors, and threads meet once per minibatch.

Notation: z = (action - mean) / std, so that log p = -|z|^2 / 2 - sum(log std) + constant. Its
derivatives are z / std by the mean and (z^2 - 1) / std by the standard deviation.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from rsl_rl.models import MLPModel
from rsl_rl.modules.distribution import GaussianDistribution
from torch import nn

from mjfleet.config import PPOConfig
from mjfleet.rl.cpu_network import BLOCK_ACTIVATIONS, CpuNetwork
from mjfleet.rl.gradient_reduction import MEASURES, FlatGradient
from mjfleet.rl.minibatches import Minibatch

LOG_2_PI = math.log(2.0 * math.pi)
NUMBERS_LIKE_PYTHON = 2**15
"""Activations of a layer in a minibatch that take about as long as Python's part of it."""


def useful_threads(actor: Any, critic: Any, batch_size: int) -> int:
    """Return the number of threads that compute a minibatch fastest.

    n threads divide the time for the numbers by n and multiply the time for Python's part, which
    one thread does at a time, by n: the best n is the square root of their ratio. It depends on the
    configuration alone, because another n would round differently.
    """
    linears = [x for mlp in (actor.mlp, critic.mlp) for x in mlp if isinstance(x, nn.Linear)]
    widest = max(layer.out_features for layer in linears)
    return max(1, math.isqrt(batch_size * widest // NUMBERS_LIKE_PYTHON))


class CpuBackprop:
    """Computes values and PPO's gradients for two networks that share no parameters.

    Of each pair of threads, one computes the policy and one the values. The pairs divide the
    samples among them. Rounding depends on the number of threads.
    """

    @staticmethod
    def supports(*models: Any) -> bool:
        """Whether the gradients of these networks are known in closed form."""
        return all(
            type(model) is MLPModel
            and (model.distribution is None or type(model.distribution) is GaussianDistribution)
            and CpuNetwork.supports(model.mlp)
            for model in models
        )

    def __init__(
        self,
        actor: Any,
        critic: Any,
        gradient: FlatGradient,
        config: PPOConfig,
        num_threads: int,
        block_activations: int = BLOCK_ACTIVATIONS,
    ) -> None:
        """Prepare the threads.

        Args:
            actor: policy network, see `supports`.
            critic: value network.
            gradient: receives the gradients, losses and KL divergence.
            config: coefficients of the loss.
            num_threads: threads that compute, including this one.
            block_activations: activations of a layer that a thread computes at a time.
        """
        pairs = max(1, num_threads // 2)
        self._flats = [gradient.flat, *(gradient.flat.clone() for _ in range(pairs - 1))]
        """A sum of gradients for each part of the samples; the first becomes the total."""
        network = partial(CpuNetwork, block_activations=block_activations)
        self._losses = [
            (
                _ValueLoss(network(critic.mlp), config, gradient, flat),
                _PolicyLoss(network(actor.mlp), config, gradient, flat, actor.distribution),
            )
            for flat in self._flats
        ]
        self._policy, self._num_actions = network(actor.mlp), actor.distribution.output_dim
        self._critics = [network(critic.mlp) for _ in range(2 * pairs)]
        self._pool = (
            ThreadPoolExecutor(2 * pairs - 1, "learner", torch.set_num_threads, (1,))
            if num_threads > 1
            else None
        )

    def compute_gradients(self, batch: Minibatch) -> None:
        """Write the gradients of the minibatch's loss, its parts and its KL divergence."""
        calls: list[Callable[[], None]] = []
        samples, parts = len(batch.actions), len(self._flats)
        for i, losses in enumerate(self._losses):
            self._flats[i].zero_()
            part = batch.rows(slice(samples * i // parts, samples * (i + 1) // parts))
            calls += [partial(loss.add_gradients, part, samples) for loss in losses]
        self._run(calls)
        for flat in self._flats[1:]:
            self._flats[0].add_(flat)

    def policy_output(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the action means `(samples, num_actions)` of normalised observations."""
        means = inputs.new_empty(len(inputs), self._num_actions)
        self._policy.predict(inputs, means)
        return means

    def predict_values(self, inputs: torch.Tensor, values: torch.Tensor) -> None:
        """Write the values `(samples, 1)` of normalised observations `(samples, size)`."""
        count = len(self._critics)
        parts = zip(inputs.tensor_split(count), values.tensor_split(count), strict=True)
        self._run([partial(x.predict, *part) for x, part in zip(self._critics, parts, strict=True)])

    def _run(self, calls: Sequence[Callable[[], None]]) -> None:
        """Make all calls, the last one in this thread."""
        others = [self._pool.submit(call) for call in calls[:-1]] if self._pool else []
        for call in calls[len(others) :]:
            call()
        for other in others:
            other.result()


class _Loss:
    """A loss of one network, and where its gradients go."""

    def __init__(
        self, network: CpuNetwork, config: PPOConfig, gradient: FlatGradient, flat: torch.Tensor
    ) -> None:
        self._network = network
        self._config = config
        self._views = gradient.views(flat)
        self._into = [(self._views[w], self._views[b]) for w, b in self._network.parameters]
        self._measures = dict(zip(MEASURES, flat[-len(MEASURES) :], strict=True))

    def _blocks(self, batch: Minibatch) -> Iterator[Minibatch]:
        """Return parts of a minibatch that the network can compute at a time."""
        size = self._network.num_rows
        for start in range(0, len(batch.actions), size):
            yield batch.rows(slice(start, start + size))


class _ValueLoss(_Loss):
    """The value loss."""

    def add_gradients(self, batch: Minibatch, samples: int) -> None:
        """Add the gradients of `batch`, which is a part of a minibatch of `samples` samples."""
        config, clip = self._config, self._config.clip_param
        for block in self._blocks(batch):
            predicted = self._network.forward(block.critic_inputs)
            errors = predicted - block.returns
            by_value = errors
            if config.use_clipped_value_loss:
                change = predicted - block.values
                clipped = block.values + change.clamp(-clip, clip) - block.returns
                is_worse = clipped.abs() > errors.abs()
                # Beyond the clip, the clipped loss does not depend on the prediction.
                by_value = torch.where(is_worse & (change.abs() > clip), 0.0, errors)
                errors = torch.where(is_worse, clipped, errors)
            self._measures["value"].add_(errors.square().sum(), alpha=1.0 / samples)
            by_value = by_value * (2.0 * config.value_loss_coef / samples)
            self._network.add_gradients(block.critic_inputs, by_value, self._into)


class _PolicyLoss(_Loss):
    """Surrogate loss, entropy and KL divergence."""

    def __init__(
        self,
        network: CpuNetwork,
        config: PPOConfig,
        gradient: FlatGradient,
        flat: torch.Tensor,
        distribution: Any,
    ) -> None:
        super().__init__(network, config, gradient, flat)
        self._distribution = distribution
        (self._parameter,) = distribution.parameters()

    def add_gradients(self, batch: Minibatch, samples: int) -> None:
        """Add the gradients of `batch`, which is a part of a minibatch of `samples` samples."""
        std, std_by_parameter = self._std()
        log_volume = std.log().sum() + 0.5 * len(std) * LOG_2_PI
        by_std = torch.zeros_like(std)
        for block in self._blocks(batch):
            mean = self._network.forward(block.actor_inputs)
            z = (block.actions - mean) / std
            squares = z.square()
            ratio = (squares.sum(dim=1).mul_(-0.5) - log_volume - block.log_probs).exp_()
            gain = ratio * block.advantages
            # The loss is -min(gain, limit) / samples; the derivative of the ratio is the ratio.
            by_log_prob = torch.where(gain <= block.limits, gain, 0.0).mul_(-1.0 / samples)
            surrogate = torch.minimum(gain, block.limits).sum()
            self._measures["surrogate"].sub_(surrogate, alpha=1.0 / samples)
            kl = _kl(block, mean, std).mul_(len(block.actions) / samples)
            self._measures["kl"].add_(kl)
            by_std += (by_log_prob @ squares - by_log_prob.sum()) / std
            by_mean = z.mul_(by_log_prob.unsqueeze(1)).div_(std)
            self._network.add_gradients(block.actor_inputs, by_mean, self._into)
        share = len(batch.actions) / samples
        self._measures["entropy"].add_(log_volume + 0.5 * len(std), alpha=share)
        by_std -= self._config.entropy_coef * share / std
        if self._parameter.requires_grad:
            self._views[self._parameter].addcmul_(by_std, std_by_parameter)

    def _std(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the standard deviations, and their derivatives by the parameter: `(actions,)`."""
        distribution, parameter = self._distribution, self._parameter.detach()
        is_log = distribution.std_type == "log"
        low, high = distribution.log_std_range if is_log else distribution.std_range
        is_inside = (parameter >= low) & (parameter <= high)
        std = parameter.clamp(low, high)
        if is_log:
            std = std.exp()
        return std, torch.where(is_inside, std if is_log else torch.ones_like(std), 0.0)


def _kl(batch: Minibatch, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """Return the mean KL divergence from the rollout's policy, whose deviations all samples share.

    Kullback-Leibler divergence of two Gaussians: (r^2 + d^2 - 1) / 2 - log r, with the ratio r of
    the standard deviations and the distance d of the means in units of the new deviation.
    """
    ratio = batch.stds[0] / std
    distances = ((batch.means - mean) / std).square().sum() / len(mean)
    return 0.5 * (ratio.square().sum() - len(std) + distances) - ratio.log().sum()
