"""PPO's loss gradients in closed form, computed by several CPU threads. Runs in a worker.

They exist for networks of linear layers and a Gaussian with one standard deviation per action, and
need no autograd. Before the layers, autograd has convolutions of images.
Notation: z = (action - mean) / std, so that log p = -|z|^2 / 2 - sum(log std) + constant. Its
derivatives are z / std by the mean and (z^2 - 1) / std by the standard deviation.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import torch
from rsl_rl.models import CNNModel, MLPModel
from rsl_rl.modules.distribution import GaussianDistribution
from torch import nn

from mjfleet.rl.device.cpu_products import linear
from mjfleet.rl.minibatches import Minibatch
from mjfleet.rl.networks import image_groups

LOG_2_PI = math.log(2.0 * math.pi)
LOG2_E = math.log2(math.e)
BLOCK_ACTIVATIONS = 2**18
"""Activations of the widest layer that are computed at a time. They fit in a CPU's cache."""
NUMBERS_LIKE_PYTHON = 2**15
"""Activations of a layer in a minibatch that take about as long as Python's part of it."""


def elu_(values: torch.Tensor) -> torch.Tensor:
    """Replace x by max(x, exp(min(x, 0)) - 1), in half of the time that torch's ELU takes.

    A CPU computes powers of 2 faster than those of e.
    """
    powers = (values * LOG2_E).clamp_(max=0.0).exp2_()
    return torch.maximum(values, powers.sub_(1.0), out=values)


aten = torch.ops.aten
ACTIVATIONS: dict[type[nn.Module], tuple[Callable[..., object], Callable[..., object]]] = {
    nn.ELU: (elu_, lambda g, y: aten.elu_backward.grad_input(g, 1, 1, 1, True, y, grad_input=g)),
    nn.ReLU: (torch.relu_, lambda g, y: aten.threshold_backward.grad_input(g, y, 0, grad_input=g)),
    nn.Tanh: (torch.tanh_, lambda g, y: aten.tanh_backward.grad_input(g, y, grad_input=g)),
}
"""What computes an activation's output y in place, and multiplies a gradient by its derivative."""


def choose_backprop(alg: Any, is_called: bool) -> "CpuBackprop | None":
    """Return what computes the gradients of a PPO, see PPOConfig.backprop. None: autograd.

    `is_called`: whether nothing is captured.
    """
    networks, config = (alg.actor, alg.critic), alg.config
    is_plain = is_called and not (alg.has_own_loss or config.use_mixed_precision)
    is_known = alg.device == "cpu" and is_plain and CpuBackprop.supports(*networks)
    if config.backprop == "autograd" or not is_known:
        return None
    # n threads divide the time for the numbers by n and multiply the time for Python's part, which
    # one thread does at a time, by n: the best n is the square root of their ratio. It depends on
    # the configuration alone, because another n would round differently.
    widest = max(_widest(model.mlp) for model in networks)
    batch_size = len(alg.minibatches.taken.actions)
    useful = max(1, math.isqrt(batch_size * widest // NUMBERS_LIKE_PYTHON))
    threads = config.learning_threads or min(alg.torch_threads, useful)
    alg.torch_threads = threads if alg.minibatches.has_images else 1  # Those of convolutions.
    return CpuBackprop(alg, threads)


def _widest(mlp: Any) -> int:
    """Return the number of outputs of the widest layer."""
    return max(layer.out_features for layer in mlp if isinstance(layer, nn.Linear))


def _is_plain(layers: Sequence[Any]) -> bool:
    """Return whether these are linear layers with biases, and one known activation between them.

    A subclass of PPO may have changed some.
    """
    linears, activations = layers[::2], layers[1::2]
    return (
        len(linears) == len(activations) + 1 > 1
        and all(type(layer) is nn.Linear and layer.bias is not None for layer in linears)
        and type(layers[1]) in ACTIVATIONS
        and all(type(layer) is type(layers[1]) for layer in activations)
        and all(getattr(layer, "alpha", 1.0) == 1.0 for layer in activations)
    )


class CpuNetwork:
    """A network's layers, for blocks of `num_rows` samples."""

    def __init__(self, mlp: Any, gradients: Mapping[Any, torch.Tensor] | None = None) -> None:
        """Take the parameters of `mlp`, rsl_rl's MLP.

        `gradients`: where `add_gradients` adds, by parameter.
        """
        linears = [layer for layer in mlp if isinstance(layer, nn.Linear)]
        self.num_rows = max(1, BLOCK_ACTIVATIONS // _widest(mlp))
        # Detached, so that no thread needs to switch autograd off.
        self._layers = [(x.weight.detach(), x.bias.detach()) for x in linears]
        self._gradients = [(gradients[x.weight], gradients[x.bias]) for x in linears if gradients]
        self._activate, self._activate_backward = ACTIVATIONS[type(mlp[1])]
        self._inputs: list[torch.Tensor] = []
        """Those of each layer in the last call of `forward`."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the outputs `(rows, size)` of inputs `(rows, size)`."""
        self._inputs = []
        for weight, bias in self._layers:
            if self._inputs:
                self._activate(rows)
            self._inputs.append(rows)
            rows = linear(rows, weight, bias)
        return rows

    def predict(self, rows: torch.Tensor, outputs: torch.Tensor) -> None:
        """Write the outputs of any number of rows."""
        size = self.num_rows
        for part, out in zip(rows.split(size), outputs.split(size), strict=True):
            out.copy_(self.forward(part))

    def add_gradients(self, by_output: torch.Tensor, replaces: bool = False) -> None:
        """Add the parameters' gradients, given the loss's by the outputs `(rows, size)`.

        They are those of the last call of `forward`, whose rows may be replaced by their own.
        """
        gradient = by_output
        for i in reversed(range(len(self._layers))):
            inputs, (by_weight, by_bias) = self._inputs[i], self._gradients[i]
            if inputs.shape[1] < gradient.shape[1]:
                # A product with fewer columns than rows can take five times as long on a CPU.
                by_weight += linear(inputs.t(), gradient.t()).t()
            else:
                by_weight += linear(gradient.t(), inputs.t())
            by_bias += gradient.sum(dim=0)
            if i or replaces:
                gradient = linear(gradient, self._layers[i][0].t())
            if i:
                self._activate_backward(gradient, inputs)
            elif replaces:
                inputs.copy_(gradient)


class _Pair(NamedTuple):
    """What two threads compute with, and the sums over their samples."""

    actor: CpuNetwork
    critic: CpuNetwork
    flat: torch.Tensor  # As in FlatGradient. The first pair's becomes the total.
    losses: torch.Tensor  # Losses of values, surrogate and entropy.
    std_gradient: torch.Tensor | None  # None: the standard deviation is constant.


class CpuBackprop:
    """Computes values and PPO's gradients for two networks that share at most encoders of images.

    One thread of each pair computes the policy, the other one the values. The pairs divide the
    samples among them. Rounding depends on the number of threads.
    """

    @staticmethod
    def supports(*models: Any) -> bool:
        """Return whether the gradients of these networks are known in closed form."""
        return all(
            type(model) in (MLPModel, CNNModel)
            and (model.distribution is None or type(model.distribution) is GaussianDistribution)
            and _is_plain([*model.mlp])
            for model in models
        )

    def __init__(self, alg: Any, num_threads: int) -> None:
        """Prepare threads, including this one, which write the gradients of a PPO."""
        gradient, learns_values = alg.gradient, alg.config.learns_values
        self._parts = [self._add_value_gradients] if learns_values else []
        self._parts.append(self._add_policy_gradients)
        count = max(1, num_threads // len(self._parts))
        self._numbers, self._distribution = alg, alg.actor.distribution
        self._encodes = [bool(image_groups(network)) for network in (alg.actor, alg.critic)]
        (self._std_parameter,) = self._distribution.parameters()
        self._pairs: list[_Pair] = []
        for flat in (gradient.flat, *(gradient.flat.clone() for _ in range(count - 1))):
            views = gradient.views(flat)
            policy = CpuNetwork(alg.actor.mlp, views)
            values = CpuNetwork(alg.critic.mlp, views if learns_values else None)
            std_gradient = views.get(self._std_parameter)
            self._pairs.append(_Pair(policy, values, flat, flat.new_zeros(3), std_gradient))
        others = [CpuNetwork(alg.critic.mlp) for _ in self._pairs]
        self._critics = [*(pair.critic for pair in self._pairs), *others]
        self._pool = (
            ThreadPoolExecutor(len(self._parts) * count - 1, "learner", torch.set_num_threads, (1,))
            if num_threads > 1
            else None
        )

    def compute_gradients(self, batch: Minibatch) -> torch.Tensor:
        """Write the gradients of the minibatch's loss and its KL divergence.

        Returns the loss's parts: that of the values, if they are learned, surrogate and entropy.
        """
        calls: list[Callable[[], None]] = []
        samples, parts = len(batch.actions), len(self._pairs)
        encoded = [x for x in (batch.actor_inputs, batch.critic_inputs) if x.requires_grad]
        batch = batch.map(torch.Tensor.detach) if encoded else batch
        for i, pair in enumerate(self._pairs):
            pair.flat.zero_()
            pair.losses.zero_()
            part = batch.rows(samples * i // parts, samples * (i + 1) // parts)
            calls += [partial(add, pair, part, samples) for add in self._parts]
        self._run(calls)
        first, *others = self._pairs
        for pair in others:
            first.flat.add_(pair.flat)
            first.losses.add_(pair.losses)
        if encoded:  # Each holds its gradient now.
            torch.autograd.backward(encoded, [x.detach() for x in encoded])
        return first.losses[-1 - len(self._parts) :]

    def policy_output(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the action means `(samples, num_actions)` of normalised observations."""
        means = inputs.new_empty(len(inputs), self._distribution.output_dim)
        self._pairs[0].actor.predict(inputs, means)
        return means

    def predict_values(self, inputs: torch.Tensor, values: torch.Tensor) -> None:
        """Write the values `(samples, 1)` of normalised observations `(samples, size)`."""
        count = len(self._critics)
        parts = zip(inputs.tensor_split(count), values.tensor_split(count), strict=True)
        self._run([partial(x.predict, *part) for x, part in zip(self._critics, parts, strict=True)])

    def _run(self, calls: Sequence[Callable[[], None]]) -> None:
        """Make all calls, the last one in this thread."""
        others = [self._pool.submit(call) for call in calls[:-1]] if self._pool else []
        if (threads := torch.get_num_threads()) > 1:
            torch.set_num_threads(1)
        for call in calls[len(others) :]:
            call()
        for other in others:
            other.result()
        if threads > 1:
            torch.set_num_threads(threads)

    def _add_value_gradients(self, pair: _Pair, part: Minibatch, samples: int) -> None:
        """Add the value loss of a part of a minibatch, which has `samples` samples."""
        numbers, clip = self._numbers, self._numbers.clip_param
        for block in part.blocks(pair.critic.num_rows):
            predicted = pair.critic.forward(block.critic_inputs)
            by_value = errors = predicted - block.returns
            if numbers.use_clipped_value_loss:
                change = predicted - block.values
                clipped = block.values + change.clamp(-clip, clip) - block.returns
                is_worse = clipped.abs() > errors.abs()
                # Beyond the clip, the clipped loss does not depend on the prediction.
                by_value = torch.where(is_worse & (change.abs() > clip), 0.0, errors)
                errors = torch.where(is_worse, clipped, errors)
            pair.losses[0].add_(errors.square().sum(), alpha=1.0 / samples)
            by_value = by_value * (2.0 * numbers.value_loss_coef / samples)
            pair.critic.add_gradients(by_value, self._encodes[1])

    def _add_policy_gradients(self, pair: _Pair, part: Minibatch, samples: int) -> None:
        """Add surrogate loss, entropy and KL divergence of a part of a minibatch."""
        (std, std_by_parameter), clip = self._std(), self._numbers.clip_param
        log_volume = std.log().sum() + 0.5 * len(std) * LOG_2_PI
        by_std = torch.zeros_like(std)
        for block in part.blocks(pair.actor.num_rows):
            mean = pair.actor.forward(block.actor_inputs)
            z = (block.actions - mean) / std
            squares = z.square()
            ratio = (squares.sum(dim=1).mul_(-0.5) - log_volume - block.log_probs).exp_()
            gain = ratio * block.advantages
            # The loss is -min(gain, limit) / samples; the derivative of the ratio is the ratio.
            # The limit: the advantage times 1 + clip if it is positive, otherwise times 1 - clip.
            limits = torch.add(block.advantages, block.advantages.abs(), alpha=clip)
            by_log_prob = torch.where(gain <= limits, gain, 0.0).mul_(-1.0 / samples)
            pair.losses[1].sub_(torch.minimum(gain, limits).sum(), alpha=1.0 / samples)
            # The divergence of two Gaussians is (r^2 + d^2 - 1) / 2 - log r, with the ratio r of
            # their deviations and the distance d of the means in units of the new deviation.
            r = block.distribution[1][0] / std  # All samples share it.
            d2 = ((block.distribution[0] - mean) / std).square().sum() / len(mean)
            kl = 0.5 * (r.square().sum() - len(std) + d2) - r.log().sum()
            pair.flat[-1].add_(kl.mul_(len(block.actions) / samples))
            by_std += (by_log_prob @ squares - by_log_prob.sum()) / std
            by_mean = z.mul_(by_log_prob.unsqueeze(1)).div_(std)
            pair.actor.add_gradients(by_mean, self._encodes[0])
        share = len(part.actions) / samples
        pair.losses[2].add_(log_volume + 0.5 * len(std), alpha=share)
        by_std -= self._numbers.entropy_coef * share / std
        if pair.std_gradient is not None:
            pair.std_gradient.addcmul_(by_std, std_by_parameter)

    def _std(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the standard deviations, and their derivatives by the parameter: `(actions,)`."""
        distribution, parameter = self._distribution, self._std_parameter.detach()
        is_log = distribution.std_type == "log"
        low, high = distribution.log_std_range if is_log else distribution.std_range
        clamped = parameter.clamp(low, high)
        std = clamped.exp() if is_log else clamped
        slope = std if is_log else torch.ones_like(std)
        return std, torch.where(clamped == parameter, slope, 0.0)
