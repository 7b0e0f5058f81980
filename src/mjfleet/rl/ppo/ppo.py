"""Proximal policy optimisation for feed-forward policies, on CPU and GPU. Runs in a worker.

A subclass may override `loss`, and add networks by `modules`: docs/networks.md. GRPO is the same
update with other advantages, see group_advantages.py, and leaves the critic as it was initialised.

It computes the same parameters as rsl_rl's PPO, except for rounding, in another order: values, and
of Gaussians also log-probabilities, are computed for all steps at once; samples are normalised once
per update, not once per epoch. Losses, KL divergence and learning rate stay on the device until an
iteration ends.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from rsl_rl.modules.distribution import GaussianDistribution, HeteroscedasticGaussianDistribution
from tensordict import TensorDict
from torch.distributions import Normal

from mjfleet.rl.algorithm import NUMBERS, Algorithm
from mjfleet.rl.device import optimizer as device_optimizer
from mjfleet.rl.device.graph_capture import Captured
from mjfleet.rl.equivariance import Equivariance
from mjfleet.rl.learner import Setup
from mjfleet.rl.minibatches import Minibatch, Minibatches, forget_nodes, room_for_distribution
from mjfleet.rl.networks import augmentation
from mjfleet.rl.normalizers import update_normalizers
from mjfleet.rl.ppo import loss_check
from mjfleet.rl.ppo.cpu_backprop import choose_backprop
from mjfleet.rl.ppo.group_advantages import group_advantages
from mjfleet.sim.deferred import Deferred, read

GAUSSIANS = GaussianDistribution, HeteroscedasticGaussianDistribution
"""Distributions that are sampled as mean + deviation * noise."""


class PPO(Algorithm):
    """PPO by autograd; on a CPU by gradients in closed form, where CpuBackprop has them."""

    usual_alone = ()
    captures = False
    """Whether a `loss` of a subclass may become a CUDA graph, see docs/networks.md."""

    def __init__(self, setup: Setup, **settings: Any) -> None:
        super().__init__(setup, **settings)
        before = {*vars(self)}
        storage, config, gradient = self.storage, self.config, self.gradient
        self.has_own_loss = type(self).loss is not PPO.loss
        capture = setup.capture if not self.has_own_loss or self.captures else None
        self._capture, self.is_captured = capture, setup.capture is not None
        parts = (self.actor, self.critic), storage.observations[0], gradient
        mirror = augmentation(config.symmetry_cfg, setup.load) if config.ties_weights else None
        self.equivariance = Equivariance(partial(mirror, setup.env), *parts) if mirror else None
        self._is_gaussian = type(self.actor.distribution) in GAUSSIANS
        self._distribution = room_for_distribution(self.actor, storage)
        storage.distribution_params = self._distribution
        self._time_outs = torch.zeros_like(storage.dones)
        self._last_observations = storage.observations[0].clone()  # Those after a rollout.
        self.minibatches = Minibatches(self.actor, self.critic, storage, config)
        self._cpu = choose_backprop(self, self._capture is None)
        self._clipped = gradient.split(self.networks().values())
        self.name_losses(("value", "surrogate", "entropy")[0 if config.learns_values else 1 :])
        # A number for a graph to read. On a CPU it is as exact as Python's.
        dtype = torch.float64 if self.device == "cpu" else torch.float32
        self._rate = torch.tensor(self.learning_rate, dtype=dtype, device=self.device)
        self._read_rate = self.learning_rate
        device_optimizer.prepare(self.optimizer, self._rate)
        self._backward = Captured("backward", self._compute_gradients, self.written, capture)
        self._step = Captured("the step", self._apply_gradients, self._stepped, capture)
        self._numbers = [getattr(self, name) for name in NUMBERS]
        self.scratch("_read_rate", *vars(self).keys() - before)

    def check(self, obs: TensorDict) -> None:
        loss_check.check(self, obs)

    def name_losses(self, names: Sequence[str]) -> None:
        """Set the names of the parts of `loss`, whose sums an update collects."""
        self._loss_names, self._totals = names, self.gradient.flat.new_zeros(len(names))

    def act(self, obs: TensorDict) -> torch.Tensor:
        """Sample actions `(num_envs, num_actions)`; store them and the observations."""
        storage, step, actor = self.storage, self.storage.step, self.actor
        policy = self._cpu.policy_output if self._cpu else actor.mlp
        actor.distribution.update(policy(actor.get_latent(obs)))
        now = actor.output_distribution_params
        if self._is_gaussian:
            mean, std = now
            # The same bits as torch.normal, which would wait for a GPU.
            actions = torch.randn_like(mean) * std + mean
        else:
            actions = actor.distribution.sample()
            storage.actions_log_prob[step, :, 0] = actor.get_output_log_prob(actions)
        pairs = [(rollout[step], obs.get(name)) for name, rollout in storage.observations.items()]
        rollouts = *self._distribution, storage.actions
        pairs += [(to[step], value) for to, value in zip(rollouts, (*now, actions), strict=True)]
        torch.ops.aten._foreach_copy_([to for to, _ in pairs], [value for _, value in pairs])
        return actions

    def process_env_step(
        self, obs: TensorDict, rewards: torch.Tensor, dones: torch.Tensor, extras: dict[str, Any]
    ) -> None:
        """Store the outcome of the actions."""
        step = self.storage.step
        self.storage.rewards[step, :, 0] = rewards
        self.storage.dones[step, :, 0] = dones
        self._time_outs[step, :, 0] = extras["time_outs"]
        self.storage.step += 1

    def compute_returns(self, obs: TensorDict) -> None:
        """Keep the observations after the rollout, from which the update computes returns."""
        groups = self._last_observations.items()
        torch.ops.aten._foreach_copy_([own for _, own in groups], [obs.get(k) for k, _ in groups])

    def loss(self, minibatch: Minibatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the loss of a minibatch, and its parts by name, all of them scalars.

        A subclass may add to both. The names are the same in each call; each part's mean over
        minibatches and ranks is `loss/<name>` in the metrics. The actor's distribution has to be
        that of the minibatch at the end, for the KL divergence.
        """
        actor, clip = self.actor, self.clip_param
        actor.distribution.update(actor.mlp(minibatch.actor_inputs))
        ratio = torch.exp(actor.get_output_log_prob(minibatch.actions) - minibatch.log_probs)
        gain = minibatch.advantages * ratio
        limit = minibatch.advantages * ratio.clamp(1.0 - clip, 1.0 + clip)
        surrogate = -torch.minimum(gain, limit).mean()
        entropy = actor.output_entropy.mean()
        total = surrogate - self.entropy_coef * entropy
        parts = {"surrogate": surrogate, "entropy": entropy}
        if not self.config.learns_values:
            return total, parts
        values = self.critic.mlp(minibatch.critic_inputs)
        errors = (values - minibatch.returns).square()
        if self.use_clipped_value_loss:
            near = minibatch.values + (values - minibatch.values).clamp(-clip, clip)
            errors = torch.maximum(errors, (near - minibatch.returns).square())
        value = errors.mean()
        return total + self.value_loss_coef * value, {"value": value, **parts}

    def update(self) -> dict[str, float]:
        """Learn from the stored rollout; return the mean parts of the loss on this rank."""
        return read(self._start_update())[0]

    def learn(self) -> Deferred[dict[str, float]]:
        if type(self).update is not PPO.update:  # What a subclass adds needs the losses.
            return super().learn()
        with torch.inference_mode():
            self.compute_returns(self._after)
        return self._start_update()

    def _start_update(self) -> Deferred[dict[str, float]]:
        """Learn from the stored rollout; return the mean losses, which may still be computed.

        Decoding them also sets `learning_rate`.
        """
        self._take_changes()
        self._finish_rollout()
        self.minibatches.fill()
        self._totals.zero_()
        for _ in range(self.num_learning_epochs):
            for batch in self.minibatches.batches:
                self.minibatches.take(batch, copies=self._capture is not None)
                self._backward()
                if self.is_distributed:
                    self.reduce_parameters()
                self._step()
        update_normalizers(self)
        self.storage.clear()
        count = self.num_learning_epochs * len(self.minibatches.batches)
        return Deferred(torch.cat((self._totals / count, self._rate.view(1))), self._read_losses)

    def _take_changes(self) -> None:
        """Use numbers that were changed in this object since the last update."""
        if (numbers := [getattr(self, name) for name in NUMBERS]) != self._numbers:
            self._numbers = numbers
            self._forget_graphs()
        for group in self.optimizer.param_groups:
            if group["lr"] is not self._rate:
                self.learning_rate, group["lr"] = float(group["lr"]), self._rate
        if self.learning_rate != self._read_rate:  # Otherwise a schedule of torch's may fill it.
            self._rate.fill_(self.learning_rate)
        self.gradient.attach()

    def _read_losses(self, numbers: list[float]) -> dict[str, float]:
        *losses, self.learning_rate = numbers
        self._read_rate = self.learning_rate
        return dict(zip(self._loss_names, losses, strict=True))

    @torch.no_grad()
    def _finish_rollout(self) -> None:
        """Compute log-probabilities, values, returns and advantages of the rollout."""
        storage, config = self.storage, self.config
        self.store_log_probs()
        if not config.learns_values:
            rewards, dones = storage.rewards[:, :, 0], storage.dones[:, :, 0].bool()
            advantages = group_advantages(rewards, dones, config.group_size, self.gamma)
            storage.advantages = advantages.unsqueeze(2)
            return
        self._compute_returns()
        storage.advantages = storage.returns - storage.values
        if not config.normalize_advantage_per_mini_batch:
            self.normalize_advantages()

    def store_log_probs(self) -> None:
        """Compute the log-probabilities of all actions, unless `act` has."""
        storage = self.storage
        if self._is_gaussian:
            mean, std = self._distribution
            log_probs = Normal(mean, std).log_prob(storage.actions)
            storage.actions_log_prob[:, :, 0] = log_probs.sum(dim=-1)

    def _compute_returns(self) -> None:
        """Compute values and returns of the rollout, as rsl_rl does."""
        storage = self.storage
        inputs = self.minibatches.latents_of(self.critic, storage.observations.flatten(0, 1))
        if self._cpu:
            self._cpu.predict_values(inputs, storage.values.flatten(0, 1))
        else:
            storage.values.flatten(0, 1).copy_(self.critic.mlp(inputs))
        # The state that a time-out cut off is not observed. As in rsl_rl, the value of the state
        # before it, in which the last action was taken, stands for the rewards after it.
        rewards = storage.rewards + self.gamma * storage.values * self._time_outs
        discounts = (1.0 - storage.dones.float()) * self.gamma
        next_values = torch.cat((storage.values[1:], self.critic(self._last_observations)[None]))
        errors = rewards + discounts * next_values - storage.values
        decays = discounts * self.lam
        advantage = torch.zeros_like(errors[0])
        for step in reversed(range(len(errors))):
            advantage = errors[step] + decays[step] * advantage
            torch.add(advantage, storage.values[step], out=storage.returns[step])

    def _compute_gradients(self) -> None:
        """Write the minibatch's gradients and KL divergence; add the parts of its loss."""
        batch, actor, gradient = self.minibatches.taken, self.actor, self.gradient
        if self._cpu:
            self._totals += self._cpu.compute_gradients(self.minibatches.encode(batch))
            return
        gradient.flat.zero_()
        # Autocast's cache of rounded weights is of no use, and would outlive a capture.
        device, rounds = batch.actions.device.type, self.config.use_mixed_precision
        with torch.autocast(device, torch.bfloat16, rounds, cache_enabled=False):
            batch = self.minibatches.encode(batch)
            total, parts = self.loss(batch)
            with torch.no_grad():
                losses = loss_check.stack_parts(self, parts, self._loss_names)
                now = actor.output_distribution_params
                gradient.kl.copy_(actor.get_kl_divergence(batch.distribution, now).mean())
        total.backward()
        self._totals += losses
        forget_nodes(self, batch.actor_inputs)

    def written(self) -> list[torch.Tensor]:
        """Return what computing gradients writes: layers' own tensors and declared state too."""
        buffers = [buffer for network in self.networks().values() for buffer in network.buffers()]
        return [self.gradient.flat, self._totals, *buffers, *self.tensors()]

    def _apply_gradients(self) -> None:
        """Adapt the learning rate, clip the gradients, and step."""
        if self.is_adaptive:
            adapt = device_optimizer.adapt if self._cpu is None else device_optimizer.adapt_on_host
            adapt(self._rate, self.gradient.kl, self.desired_kl)
        if self.equivariance:
            self.equivariance.tie_gradients()
        for part in self._clipped:
            part.mul_((self.max_grad_norm / (part.norm() + 1e-6)).clamp(max=1.0))
        self.optimizer.step()

    def _stepped(self) -> list[torch.Tensor]:
        """Return what `_apply_gradients` writes."""
        states = device_optimizer.state_tensors(self.optimizer)
        return [self.gradient.flat, self._rate, *self.gradient.parameters, *states]

    def save(self) -> dict[str, Any]:
        """Return networks and optimiser, with the rate of the next update, as rsl_rl's PPO does."""
        state, name = super().save(), "optimizer_state_dict"
        rate = self.learning_rate if self.learning_rate != self._read_rate else self._rate.item()
        return state | {name: device_optimizer.portable(state[name], rate)}

    def restore(self, state: Mapping[str, Any], names: Collection[str]) -> None:
        super().restore(state, names)
        if self.equivariance and "optimizer" not in names:
            self.equivariance.check_weights()
        self.set_learning_rate(self.learning_rate)
        device_optimizer.prepare(self.optimizer, self._rate)
        self._forget_graphs()  # They would step the replaced optimiser state.

    def set_learning_rate(self, rate: float, name: str = "optimizer") -> None:
        if name == "optimizer":
            self.learning_rate = self._read_rate = rate
            self._rate.fill_(rate)

    def _forget_graphs(self) -> None:
        self._backward.forget()
        self._step.forget()
