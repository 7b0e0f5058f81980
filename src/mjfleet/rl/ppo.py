"""Proximal policy optimisation for feed-forward policies, on CPU and GPU. Runs in a worker.

GRPO is the same update with other advantages, see groups.py, and without a critic: that of rsl_rl's
checkpoints stays as it was drawn.

It computes the same parameters as rsl_rl's PPO, except for rounding, in another order:

- A step evaluates the policy alone. Values and log-probabilities are computed for all steps at
  once.
- Each sample is copied and normalised once per update, not once per epoch.
- Losses, KL divergence and learning rate stay on the device until an iteration ends.
- Gradients are views of one buffer, which is clipped and reduced over the ranks as a whole.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from tensordict import TensorDict
from torch.distributions import Normal

from mjfleet.env.random_numbers import own_random_numbers
from mjfleet.errors import UserError
from mjfleet.rl.algorithm import LEARNING_RATES, Algorithm
from mjfleet.rl.autograd_backprop import AutogradBackprop
from mjfleet.rl.cpu_backprop import CpuBackprop, useful_threads
from mjfleet.rl.cuda_graphs import Capture, GraphedWork
from mjfleet.rl.equivariance import Equivariance
from mjfleet.rl.gradient_reduction import MEASURES
from mjfleet.rl.groups import group_advantages
from mjfleet.rl.minibatches import Minibatches
from mjfleet.rl.normalizers import update_normalizers
from mjfleet.sim.unread import Unread, read

CHANGEABLE = (
    "clip_param", "desired_kl", "entropy_coef", "gamma", "lam", "max_grad_norm",
    "num_learning_epochs", "use_clipped_value_loss", "value_loss_coef",
)  # fmt: skip
"""Attributes of rsl_rl's PPO that may be changed between updates."""


class PPO(Algorithm):
    """PPO by gradients in closed form where CpuBackprop has them, and by autograd elsewhere."""

    def __init__(
        self,
        *args: Any,
        capture: Capture | None = None,
        mirror: Callable[..., Any] | None = None,
        **settings: Any,
    ) -> None:
        """Take Algorithm's arguments; `capture` captures updates. None: nothing is captured.

        `mirror`: ties the networks' weights, see Equivariance. None: they are free.
        """
        super().__init__(*args, **settings)
        self._check_distribution()
        self._capture = capture
        self._equivariance = mirror and Equivariance(
            mirror, (self.actor, self.critic), self.storage.observations[0], self.gradient
        )
        storage, flat = self.storage, self.gradient.flat
        # Means and standard deviations of the actions of a rollout.
        self._old = torch.zeros_like(storage.actions), torch.zeros_like(storage.actions)
        storage.distribution_params = self._old
        self._time_outs = torch.zeros_like(storage.dones)
        self._minibatches = Minibatches(self.actor, self.critic, storage, self.config)
        self._backprop = self._make_backprop()
        policy_size = sum(p.numel() for p in self.actor.parameters() if p.requires_grad)
        # The gradients of actor and critic, which are clipped each by itself.
        gradients = flat[: -len(MEASURES)].tensor_split([policy_size])
        self._clipped = gradients[: 2 if self.config.learns_values else 1]
        self._totals = torch.zeros_like(self.gradient.measures)
        self._last_observations = storage.observations[0].clone()  # Those after a rollout.
        # A graph reads the learning rate from a tensor. Otherwise it is a Python number.
        keeps_rate = capture is not None or self.device != "cpu"
        self._rate = torch.zeros((), device=self.device) if keeps_rate else None
        self._prepare_optimizer()
        self._learn = self._make_learn()

    def act(self, obs: TensorDict) -> torch.Tensor:
        """Sample actions `(num_envs, num_actions)`; store them and the observations."""
        storage, step, actor = self.storage, self.storage.step, self.actor
        actor.distribution.update(self._backprop.policy_output(actor.get_latent(obs)))
        mean, std = actor.output_distribution_params
        # The same bits as torch.normal, which would wait for a GPU.
        actions = torch.randn_like(mean) * std + mean
        groups = [(rollout[step], obs.get(name)) for name, rollout in storage.observations.items()]
        sampled = zip((*self._old, storage.actions), (mean, std, actions), strict=True)
        pairs = [*groups, *((rollout[step], now) for rollout, now in sampled)]
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

    def update(self) -> dict[str, float]:
        """Learn from the stored rollout; return the mean losses, over all ranks."""
        return read(self._start_update())[0]

    def start_update(self) -> Unread[dict[str, float]]:
        if type(self).update is not PPO.update:  # What a subclass adds needs the losses.
            return super().start_update()
        return self._start_update()

    def _start_update(self) -> Unread[dict[str, float]]:
        """Learn from the stored rollout; return the mean losses over all ranks.

        With a capture they may still be computed. Decoding them also sets `learning_rate`.
        """
        self._follow_changes()
        if self._rate is not None:
            self._rate.fill_(self.learning_rate)
            for group in self.optimizer.param_groups:
                group["lr"] = self._rate
        self.gradient.attach()
        self._learn()
        self.storage.clear()
        count = self.config.num_learning_epochs * self.config.num_mini_batches
        means = self._totals / count
        numbers = means if self._rate is None else torch.cat((means, self._rate.view(1)))
        return Unread(numbers, self._read_losses)

    def _follow_changes(self) -> None:
        """Take the numbers that somebody has changed in this object since the last update."""
        now = {name: getattr(self, name) for name in CHANGEABLE}
        if any(getattr(self.config, name) != value for name, value in now.items()):
            self.config = self._backprop.config = self._minibatches.config = replace(
                self.config, **now
            )
            self._learn = self._make_learn()  # Earlier graphs hold the numbers of their capture.

    def _read_losses(self, numbers: list[float]) -> dict[str, float]:
        if self._rate is not None:
            self.learning_rate = numbers[-1]
        losses = dict(zip(MEASURES, numbers, strict=False))
        names = ("value", "surrogate", "entropy")
        return {name: losses[name] for name in (names if self.config.learns_values else names[1:])}

    def _make_learn(self) -> GraphedWork:
        """Return what does `_parts`, as CUDA graphs if there is a capture."""

        def owners() -> dict[str, Any]:
            states = list(self.optimizer.state.values())  # The first update makes them.
            networks = {"actor": self.actor, "critic": self.critic}
            return networks | {"optimizer": states, "rate": self._rate}

        def result() -> torch.Tensor:
            return torch.cat([p.detach().flatten() for p in self.gradient.parameters])

        return GraphedWork("updates", self._parts, owners, result, self._capture)

    def _parts(self) -> Iterator[Callable[[], object]]:
        """Learn from the stored rollout; yield what the ranks have to do together."""
        config, storage = self.config, self.storage
        log_probs = Normal(*self._old).log_prob(storage.actions)
        storage.actions_log_prob[:, :, 0] = log_probs.sum(dim=-1)
        if config.learns_values:
            yield from self._compute_advantages()
        else:
            rollout = storage.rewards[:, :, 0], storage.dones[:, :, 0].bool()
            advantages = group_advantages(*rollout, config.group_size, config.gamma)
            storage.advantages = advantages.unsqueeze(2)
        self._minibatches.fill()
        self._totals.zero_()
        for _ in range(config.num_learning_epochs):
            for batch in self._minibatches.batches:
                self.on_minibatch()
                self._backprop.compute_gradients(batch)
                if self._equivariance:
                    self._equivariance.tie_gradients()
                if self.is_distributed:
                    yield self.reduce_parameters
                self._apply_gradients()
        networks = (self.actor, self.critic) if config.learns_values else (self.actor,)
        observations = storage.observations.flatten(0, 1)
        yield from update_normalizers(networks, observations, self.collectives, self._equivariance)

    def _compute_advantages(self) -> Iterator[Callable[[], object]]:
        """Compute advantages by the critic; yield what the ranks have to do together."""
        storage = self.storage
        self._compute_returns()
        if self.config.normalize_advantage_per_mini_batch:
            storage.advantages = storage.returns - storage.values
        elif self.is_distributed:
            yield from self.normalize_advantages()
        else:
            advantages = storage.returns - storage.values
            storage.advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)

    @torch.no_grad()
    def _compute_returns(self) -> None:
        """Compute values and returns of the rollout, as rsl_rl does."""
        storage, config = self.storage, self.config
        inputs = self.critic.get_latent(storage.observations.flatten(0, 1))
        self._backprop.predict_values(inputs, storage.values.flatten(0, 1))
        # The state that a time-out cut off is not observed. As in rsl_rl, the value of the state
        # before it, in which the last action was taken, stands for the rewards after it.
        rewards = storage.rewards + config.gamma * storage.values * self._time_outs
        discounts = (1.0 - storage.dones.float()) * config.gamma
        next_values = torch.cat((storage.values[1:], self.critic(self._last_observations)[None]))
        errors = rewards + discounts * next_values - storage.values
        decays = discounts * config.lam
        advantage = torch.zeros_like(errors[0])
        for step in reversed(range(len(errors))):
            advantage = errors[step] + decays[step] * advantage
            torch.add(advantage, storage.values[step], out=storage.returns[step])

    def save(self) -> dict[str, Any]:
        """Return networks and optimiser in a form that rsl_rl's own PPO can load."""
        state = super().save()
        for group in state["optimizer_state_dict"]["param_groups"]:
            group |= {"lr": self.learning_rate, "fused": None}
            if "capturable" in group:
                group["capturable"] = False
        return state

    def load(self, loaded_dict: dict[str, Any], load_cfg: dict | None, strict: bool) -> bool:
        loads_iteration = super().load(loaded_dict, load_cfg, strict)
        self._prepare_optimizer()
        self._learn = self._make_learn()  # Earlier graphs would step the replaced optimiser state.
        return loads_iteration

    def check_weights(self) -> None:
        if self._equivariance:
            self._equivariance.check_weights()

    def _make_backprop(self) -> CpuBackprop | AutogradBackprop:
        """Choose how gradients are computed, see PPOConfig.backprop."""
        networks, config = (self.actor, self.critic), self.config
        is_plain = self._capture is None and not config.use_mixed_precision
        is_known = self.device == "cpu" and is_plain and CpuBackprop.supports(*networks)
        if config.backprop == "closed-form" and not is_known:
            raise UserError(
                "--agent.algorithm.backprop closed-form needs a CPU, full precision, "
                "GaussianDistribution, and one of the activations elu, selu, relu, crelu, lrelu, "
                "tanh, sigmoid, identity. Otherwise `auto` uses autograd."
            )
        if config.backprop == "autograd" or not is_known:
            return AutogradBackprop(*networks, self.gradient, config)
        useful = useful_threads(*networks, len(self._minibatches.batches[0].actions))
        threads = config.learning_threads or min(self.torch_threads, useful)
        self.torch_threads = 1
        return CpuBackprop(*networks, self.gradient, config, threads)

    @torch.no_grad()
    def _check_distribution(self) -> None:
        """Raise UserError unless actions are independent Gaussians, as `act` samples them.

        The parameters of the actor's distribution are then their means and standard deviations.
        """
        actor, shape = self.actor, self.storage.actions[0].shape
        actor.eval()
        actor.distribution.update(actor.mlp(actor.get_latent(self.storage.observations[0])))
        actor.train()
        found, name = actor.output_distribution_params, type(actor.distribution).__name__
        with own_random_numbers(0, self.device):
            actions = actor.distribution.sample()
        if [part.shape for part in (*found, actions)] == [shape] * 3:
            mean, std = found
            with own_random_numbers(0, self.device):
                own = torch.randn_like(mean) * std + mean
            pairs = [(actions, own)]
            log_probs = Normal(mean, std).log_prob(actions).sum(dim=-1)
            pairs.append((actor.get_output_log_prob(actions), log_probs))
            if all(torch.allclose(one, other, rtol=1e-4, atol=1e-4) for one, other in pairs):
                return
        other = " or --agent.algorithm.name rsl_rl.algorithms:PPO" * self.config.learns_values
        raise UserError(
            f"{type(actor).__name__} has a {name}, and --agent.algorithm.name {self.config.name} "
            "samples Gaussians alone: choose GaussianDistribution or "
            f"HeteroscedasticGaussianDistribution{other}."
        )

    def _prepare_optimizer(self) -> None:
        """Have the optimiser step all parameters in one launch."""
        for group in self.optimizer.param_groups:
            group["fused"] = True
            if "capturable" in group:
                group["capturable"] = self.device != "cpu"
        for state in self.optimizer.state.values():
            if "step" in state:
                state["step"] = state["step"].to(self.device, torch.float32)

    def _apply_gradients(self) -> None:
        """Adapt the learning rate, clip the gradients, and step."""
        self._totals += self.gradient.measures
        if self.is_adaptive:
            self._adapt(self.gradient.kl)
        for part in self._clipped:
            part.mul_((self.config.max_grad_norm / (part.norm() + 1e-6)).clamp(max=1.0))
        self.optimizer.step()

    def _adapt(self, kl: torch.Tensor) -> None:
        """Adapt the learning rate on the device, without waiting for a GPU."""
        if self._rate is None:
            self.adapt_learning_rate(kl.item())
            return
        low, high = LEARNING_RATES
        lower, higher = (self._rate / 1.5).clamp(min=low), (self._rate * 1.5).clamp(max=high)
        is_small = (kl < self.config.desired_kl / 2.0) & (kl > 0.0)
        is_large = kl > self.config.desired_kl * 2.0
        self._rate.copy_(torch.where(is_large, lower, torch.where(is_small, higher, self._rate)))
