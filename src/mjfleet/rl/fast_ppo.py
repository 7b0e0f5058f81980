"""rsl_rl's PPO with less to do in each step and each minibatch. Runs in a worker."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rsl_rl.algorithms import PPO
from tensordict import TensorDict
from torch.distributions import Normal

from mjfleet.config import AgentConfig
from mjfleet.rl.cuda_graphs import capture, check_close
from mjfleet.rl.gaussian import Gaussian
from mjfleet.rl.learners import Learners, Samples
from mjfleet.rl.mlp import forward
from mjfleet.rl.ppo import FlatPPO

logger = logging.getLogger(__name__)

LEARNING_RATES = (1e-5, 1e-2)
"""rsl_rl's limits of the adaptive schedule."""


class FastPPO(FlatPPO):
    """The same PPO for feed-forward networks: the same parameters but for rounding, sooner.

    - A step asks the policy alone. Values and log-probabilities follow for all steps at once.
    - Each sample is looked up and normalised once per update: rsl_rl draws one permutation, which
      all epochs share.
    - Losses, KL divergence and learning rate stay on the device until an update ends.
    - All gradients are views of one buffer, also with one rank: clipping takes a few operations.
    - CPU threads share the networks and the samples of a minibatch, see Learners, and repeat what
      was recorded once, see Recorded.
    """

    @staticmethod
    def unknown(agent: AgentConfig) -> str | None:
        """What a configuration asks for that this class does not know, if anything."""
        algorithm = agent.algorithm
        unknown = {
            "a recurrent network": agent.is_recurrent,
            "random network distillation": algorithm.rnd_cfg is not None,
            "symmetry": algorithm.symmetry_cfg is not None,
            "mixed precision": algorithm.use_mixed_precision,
            "torch.compile": agent.torch_compile_mode is not None,
            f"the optimiser {algorithm.optimizer}": algorithm.optimizer == "rmsprop",
        }
        return next((what for what, is_wanted in unknown.items() if is_wanted), None)

    @staticmethod
    def construct_algorithm(obs: TensorDict, env: Any, cfg: dict[str, Any], device: str) -> PPO:
        """Build what rsl_rl builds, with a Gaussian that has less to compute."""
        actor = cfg["actor"]
        distribution = actor["distribution_cfg"]
        if distribution["class_name"] == "GaussianDistribution":
            actor = actor | {"distribution_cfg": distribution | {"class_name": Gaussian}}
        return PPO.construct_algorithm(obs, env, cfg | {"actor": actor}, device)

    def __init__(self, *args: Any, multi_gpu_cfg: dict[str, Any] | None, **kwargs: Any) -> None:
        """Take FlatPPO's arguments."""
        super().__init__(*args, multi_gpu_cfg=multi_gpu_cfg, **kwargs)
        if multi_gpu_cfg is None:
            self._share_gradients()
        policy = sum(p.numel() for p in self.actor.parameters() if p.requires_grad)
        self._parts = self._flat[:policy], self._flat[policy:-1]
        storage = self.storage
        self._old = torch.zeros_like(storage.actions), torch.zeros_like(storage.actions)
        """Means and standard deviations of the actions of a rollout."""
        storage.distribution_params = self._old
        self._time_outs = torch.zeros_like(storage.dones)
        self._learners = Learners(self, self._flat, self._views, self._adaptive)
        self._batches = self._make_batches()
        self._gradients: list[Callable[[], object]] = []
        """What computes the gradients of each minibatch."""
        self._step: Callable[[], object] = self._apply_gradients
        self._updates = 0
        # On a GPU the learning rate stays there; on a CPU it is rsl_rl's, a number of Python's.
        self._rate = None if self.device == "cpu" else torch.zeros((), device=self.device)
        self._prepare_optimizer()

    def share_among(self, num_threads: int) -> None:
        """Have so many CPU threads learn; rounding depends on their number."""
        self._learners.share_among(num_threads)

    def act(self, obs: TensorDict) -> torch.Tensor:
        """Sample actions `(num_envs, num_actions)`, and store what they were made from."""
        storage, step = self.storage, self.storage.step
        policy: Any = self.actor
        policy.distribution.update(forward(policy.mlp, policy.get_latent(obs)))
        actions = policy.distribution.sample()
        parameters = policy.output_distribution_params
        groups = [(group[step], obs.get(name)) for name, group in storage.observations.items()]
        kept = [(p[step], new) for p, new in zip(self._old, parameters, strict=True)]
        pairs = [*groups, *kept, (storage.actions[step], actions)]
        torch.ops.aten._foreach_copy_([to for to, _ in pairs], [value for _, value in pairs])
        return actions

    def process_env_step(
        self, obs: TensorDict, rewards: torch.Tensor, dones: torch.Tensor, extras: dict[str, Any]
    ) -> None:
        """Store what came of the actions."""
        step = self.storage.step
        self.storage.rewards[step, :, 0] = rewards
        self.storage.dones[step, :, 0] = dones
        self._time_outs[step, :, 0] = extras["time_outs"]
        self.storage.step += 1

    def compute_returns(self, obs: TensorDict) -> None:
        """Compute values and log-probabilities of the rollout, then returns and advantages."""
        storage = self.storage
        inputs = self.critic.get_latent(storage.observations.flatten(0, 1))
        self._learners.evaluate(inputs, storage.values.flatten(0, 1))
        # A time-out is no failure: what would have followed is worth what the state was.
        storage.rewards += self.gamma * storage.values * self._time_outs
        normal = Normal(*self._old)
        storage.actions_log_prob[:, :, 0] = normal.log_prob(storage.actions).sum(dim=-1)
        super().compute_returns(obs)

    def update(self) -> dict[str, float]:
        """Learn from the stored rollout; returns the mean losses, of this rank."""
        observations = self.storage.observations.flatten(0, 1)
        self._shuffle(observations)
        if self._rate is not None:
            self._rate.fill_(self.learning_rate)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate if self._rate is None else self._rate
        for parameter, view in self._views:
            parameter.grad = view  # Somebody may have set it to None.
        self._prepare_graphs()
        self._learners.forget_losses()
        for _ in range(self.num_learning_epochs):
            for compute_gradients in self._gradients:
                self.on_minibatch()
                compute_gradients()
                self.collectives.all_reduce(self._flat)
                self._step()
        self.actor.update_normalization(observations)
        self.critic.update_normalization(observations)
        self.storage.clear()
        if self._rate is not None:
            self.learning_rate = self._rate.item()
        means = self._learners.losses() / (self.num_learning_epochs * self.num_mini_batches)
        return dict(zip(("value", "surrogate", "entropy"), means.tolist(), strict=True))

    def save(self) -> dict[str, Any]:
        """What rsl_rl saves, in a form that its own PPO can load."""
        state = super().save()
        optimizer = state["optimizer_state_dict"]
        plain = {"lr": self.learning_rate, "fused": None}
        if "capturable" in optimizer["param_groups"][0]:
            plain["capturable"] = False
        groups = [group | plain for group in optimizer["param_groups"]]
        return state | {"optimizer_state_dict": optimizer | {"param_groups": groups}}

    def load(self, loaded_dict: dict[str, Any], load_cfg: Any, strict: bool) -> bool:
        """Load what rsl_rl loads."""
        iteration = super().load(loaded_dict, load_cfg, strict)
        self._prepare_optimizer()
        self._updates = 0  # Graphs would step the state that was there before.
        return iteration

    def _prepare_optimizer(self) -> None:
        """Have the optimiser step all parameters in one launch."""
        for group in self.optimizer.param_groups:
            group["fused"] = True
            if "capturable" in group:
                group["capturable"] = self.device != "cpu"
        for state in self.optimizer.state.values():
            if "step" in state:
                state["step"] = state["step"].to(self.device, torch.float32)

    def _prepare_graphs(self) -> None:
        """From the second update on, on a GPU: everything but the reduction as CUDA graphs."""
        self._updates += 1
        if self._updates == 1:  # It makes the state of the optimiser.
            compute = self._learners.compute_gradients
            self._gradients = [partial(compute, batch) for batch in self._batches]
            self._step = self._apply_gradients
        elif self._updates == 2 and self.device != "cpu":
            calls = self._gradients
            try:
                pool = torch.cuda.graph_pool_handle()
                graphs = [capture(call, pool=pool) for call in calls]
                calls[0]()
                wanted = self._flat.clone()
                graphs[0].replay()
                check_close("an update", self._flat, wanted)
                step = capture(self._apply_gradients, pool=pool)
            except RuntimeError as error:
                logger.warning("updates are no CUDA graphs, and slower for it: %s", error)
                return
            self._gradients, self._step = [graph.replay for graph in graphs], step.replay

    def _make_batches(self) -> list[Samples]:
        """Room for the minibatches of a rollout."""
        storage, count = self.storage, self.num_mini_batches
        size = storage.num_envs * storage.num_transitions_per_env // count

        def room(*shape: int) -> torch.Tensor:
            return torch.zeros(count, size, *shape, device=self.device)

        actions = storage.actions.shape[2:]
        fields = (
            *(room(self.actor.obs_dim), room(self.critic.obs_dim), room(*actions)),
            *(room(1), room(1), room(), room(), room(*actions), room(*actions), room()),
        )
        self._room = [field.flatten(0, 1) for field in fields]
        return [Samples(*(field[i] for field in fields)) for i in range(count)]

    def _shuffle(self, observations: TensorDict) -> None:
        """Fill the minibatches, each of which comes once in every epoch."""
        storage = self.storage
        # As rsl_rl draws it; a remainder of samples is left out.
        order = torch.randperm(len(self._room[0]), requires_grad=False, device=self.device)
        steps = (storage.actions, storage.values, storage.returns, storage.advantages)
        sources = [
            self.actor.get_latent(observations),
            self.critic.get_latent(observations),
            *(field.flatten(0, 1) for field in (*steps, storage.actions_log_prob, *self._old)),
        ]
        for rows, room in zip(sources, self._room, strict=False):
            torch.index_select(rows.view(len(rows), *room.shape[1:]), 0, order, out=room)
        if self.normalize_advantage_per_mini_batch:
            for batch in self._batches:
                mean, deviation = batch.advantages.mean(), batch.advantages.std()
                batch.advantages.sub_(mean).div_(deviation + 1e-8)
        for batch in self._batches:
            advantages = batch.advantages
            torch.add(advantages, advantages.abs(), alpha=self.clip_param, out=batch.limits)

    def _apply_gradients(self) -> None:
        """Average over the ranks, adapt the learning rate, clip, and take a step."""
        if self.collectives.world_size > 1:
            self._flat /= self.collectives.world_size
        if self._adaptive:
            self._adapt(self._flat[-1])
        for part in self._parts:
            part.mul_((self.max_grad_norm / (part.norm() + 1e-6)).clamp(max=1.0))
        self.optimizer.step()

    def _adapt(self, kl: torch.Tensor) -> None:
        """Steer the learning rate, where it is, by rsl_rl's rule and factors."""
        rate = self._rate
        if rate is None:
            self._adapt_learning_rate(kl.item())
            return
        low, high = LEARNING_RATES
        lower, higher = (rate / 1.5).clamp(min=low), (rate * 1.5).clamp(max=high)
        is_small = (kl < self.desired_kl / 2.0) & (kl > 0.0)
        wanted = torch.where(is_small, higher, rate)
        rate.copy_(torch.where(kl > self.desired_kl * 2.0, lower, wanted))
