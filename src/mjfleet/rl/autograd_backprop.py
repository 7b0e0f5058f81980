"""PPO's loss gradients by autograd: any feed-forward networks, on CPU and GPU. Runs in a worker."""

from typing import Any

import torch

from mjfleet.config import PPOConfig
from mjfleet.rl.gradient_reduction import FlatGradient
from mjfleet.rl.minibatches import Minibatch


class AutogradBackprop:
    """The interface of `CpuBackprop`, for what has no closed form there."""

    def __init__(self, actor: Any, critic: Any, gradient: FlatGradient, config: PPOConfig) -> None:
        self._actor, self._critic = actor, critic
        self._gradient, self.config = gradient, config

    def policy_output(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the policy network's output for normalised observations `(samples, size)`."""
        return self._actor.mlp(inputs)

    def predict_values(self, inputs: torch.Tensor, values: torch.Tensor) -> None:
        """Write the values `(samples, 1)` of normalised observations `(samples, size)`."""
        values.copy_(self._critic.mlp(inputs))

    def compute_gradients(self, batch: Minibatch) -> None:
        """Write the gradients of the minibatch's loss, its parts and its KL divergence."""
        config, actor = self.config, self._actor
        self._gradient.flat.zero_()
        # Its cache of rounded weights is of no use, and would outlive the capture of a graph.
        rounds = config.use_mixed_precision
        with torch.autocast(batch.actions.device.type, torch.bfloat16, rounds, cache_enabled=False):
            outputs = actor.mlp(batch.actor_inputs)
            actor.distribution.update(outputs)
            ratio = torch.exp(actor.get_output_log_prob(batch.actions) - batch.log_probs)
            surrogate = -torch.minimum(batch.advantages * ratio, batch.limits).mean()
            entropy = actor.output_entropy.mean()
            value = self._value_loss(batch) if config.learns_values else torch.zeros_like(entropy)
            loss = surrogate + config.value_loss_coef * value - config.entropy_coef * entropy
            with torch.no_grad():
                old, new = (batch.means, batch.stds), actor.output_distribution_params
                kl = actor.get_kl_divergence(old, new).mean()
                self._gradient.measures.copy_(torch.stack((value, surrogate, entropy, kl)))
        loss.backward()
        with torch.no_grad():
            # Otherwise the distribution would hold on to autograd's nodes. They belong to the
            # stream of this call, with which a capture on another stream cannot synchronise.
            actor.distribution.update(outputs.detach())

    def _value_loss(self, batch: Minibatch) -> torch.Tensor:
        """Return the mean squared error of the values, clipped if the configuration says so."""
        clip, values = self.config.clip_param, self._critic.mlp(batch.critic_inputs)
        errors = (values - batch.returns).square()
        if self.config.use_clipped_value_loss:
            change = (values - batch.values).clamp(-clip, clip)
            errors = torch.maximum(errors, (batch.values + change - batch.returns).square())
        return errors.mean()
