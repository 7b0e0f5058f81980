"""Soft actor-critic: two distributional critics, a tanh policy, a learned temperature.

Haarnoja et al. 2018 (arXiv:1812.05905), with the categorical critics and the scaling of rewards of
FlashSAC (arXiv:2604.04539). Runs in a worker.
"""

import copy
import math
from collections.abc import Collection, Mapping
from functools import partial
from itertools import chain
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from mjfleet.config import AgentConfig, SACConfig
from mjfleet.config.validation import Rule, check
from mjfleet.env import Env
from mjfleet.errors import UserError
from mjfleet.rl.device.graph_capture import Captured
from mjfleet.rl.learner import Learner, Load, Setup, Step
from mjfleet.rl.normalizers import add_samples
from mjfleet.rl.sac.captured_adam import CapturedAdam
from mjfleet.rl.sac.losses import ONE_STEP, Losses, describe_actions
from mjfleet.rl.sac.mirrored_half import MirroredHalf
from mjfleet.rl.sac.pink_noise import PinkNoise
from mjfleet.rl.sac.replay import Replay, Samples
from mjfleet.rl.sac.reward_scale import RewardScale
from mjfleet.rl.sac.seeing import build_actor, build_critics
from mjfleet.sim.deferred import Deferred
from mjfleet.sim.device_memory import free_memory
from mjfleet.utils.console import print_line

CHUNK = 32
"""Updates whose samples are drawn at once."""


class SAC(Learner):
    """SAC with a replay on each rank."""

    Config = SACConfig

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        env, agent, device = setup.env, setup.agent, setup.device
        config, ranks = self.config, self.collectives.world_size
        self.env, self.torch_threads, self._num_iterations = env, 1, agent.max_iterations
        obs = self._after = env.get_observations()
        self.actor = self.policy_of(env, agent, setup.load)
        self.critic = build_critics(env, agent, self.actor)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        pair = self.target, self.critic
        targets, critics = ([p.detach() for p in one.parameters()] for one in pair)
        follow = partial(torch.ops.aten._foreach_lerp_.Scalar, targets, critics, config.tau)
        log = torch.full((), math.log(config.initial_temperature), device=device)
        self.temperature = nn.ParameterDict({"log": log})
        taught = dict.fromkeys(self.critic.parameters())
        others = chain(self.actor.parameters(), self.temperature.parameters())
        # An encoder that actor and critics share learns by the loss of the critics.
        own = [p for p in others if p not in taught]
        rate, capture, more = config.learning_rate, setup.capture, (follow, targets)
        self._adam = {
            "actor_optimizer": CapturedAdam("actor's Adam", own, rate, capture),
            "critic_optimizer": CapturedAdam("critics' Adam", taught, rate, capture, *more),
        }
        noise = self.noise = PinkNoise(env.num_envs, env.num_actions, config.noise_memory, device)
        self.add_state("noise_values", per="env", get=lambda: noise.values, set=noise.load)
        groups = agent.obs_groups
        seen = {name: obs[name] for name in sorted({*groups.actor, *groups.critic})}
        self.mirrored = MirroredHalf(setup, seen) if config.mirrors_samples else None
        self.warm_up = max(config.n_step, -(-config.warm_up // (env.num_envs * ranks)))
        """Rows of the replay before the first update."""
        self.replay = self._make_replay(seen)
        check(config, batch_size=Rule(lambda n: n >= ranks, f"at least {ranks}, one a worker"))
        self.batch_size = config.batch_size // ranks
        self._before, self._following = (self.replay.room(self.batch_size) for _ in range(2))
        """The observations of the batch, and those after it, at fixed addresses."""
        shapes = (env.num_actions,), (), (), ()
        self._rest = [torch.zeros(self.batch_size, *shape, device=device) for shape in shapes]
        self.num_updates = self.num_steps * env.num_envs * ranks * config.updates_per_transition
        """Updates of an iteration, in the mean."""
        nats = 0.5 * math.log(math.tau * math.e * config.target_std**2)
        self.target_entropy = nats * env.num_actions
        self.iterations = self.add_state("iterations", 0)
        self.updates = self.add_state("updates", 0)
        self.rate_share = self.add_state("rate_share", 1.0)
        self.rewards = RewardScale(self, env.num_envs)
        self.losses = Losses(config, self.collectives.rank == 0, device)
        self.learning_rate = config.learning_rate
        self.is_captured = setup.capture is not None
        self.scratch(*vars(self))
        captured = partial(Captured, writes=self._written, capture=setup.capture)
        self._critics_step = captured("the critics' step", self._learn_critics)
        self._actors_step = captured("the actor's step", self._learn_actor)

    @classmethod
    def policy_of(cls, env: Env[Any], agent: AgentConfig, load: Load) -> Any:
        return build_actor(env, agent)

    def _make_replay(self, observed: dict[str, torch.Tensor]) -> Replay:
        """Allocate the replay of these groups; UserError if it is too small or too large."""
        config, env = self.config, self.env
        # Whole rollouts, so that the newest one is found in `_recent` by the row of the ring.
        envs = env.num_envs * self.collectives.world_size
        length = config.replay_size // (envs * self.num_steps) * self.num_steps
        each = sum(rows.nbytes for rows in observed.values())
        each += (4 * (env.num_actions + 1) + 1) * env.num_envs
        if self.warm_up >= length:
            raise UserError(
                f"--agent.algorithm.replay-size is {config.replay_size:,}, which holds "
                f"{length * envs:,} transitions in whole rollouts; these must be more than "
                f"the {self.warm_up * envs:,} of --agent.algorithm.warm-up and of n-step."
            )
        free = free_memory(self.device)
        if each * length > free:
            fits = free // each * envs
            raise UserError(
                f"--agent.algorithm.replay-size is {config.replay_size:,}, which takes "
                f"{each * length / 2**20:,.0f} MiB of each worker's memory; at most {fits:,} fit."
            )
        if self.collectives.rank == 0:
            saved = "" if config.save_replay else "; checkpoints are without it"
            print_line(f"each worker's replay takes up to {each * length / 2**20:,.0f} MiB{saved}")
        replay = Replay(length, observed, env.num_actions)
        state = replay.state if config.save_replay else lambda: None  # One that is there is loaded.
        self.add_state("replay", per="rank", get=state, set=replay.load_state)
        return replay

    def networks(self) -> dict[str, nn.Module]:
        return {name: getattr(self, name) for name in ("actor", "critic", "target", "temperature")}

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {name: adam.optimizer for name, adam in self._adam.items()}

    def restore(self, state: Mapping[str, Any], names: Collection[str]) -> None:
        """Load networks and optimisers; limits and supports are what this run's numbers say."""
        own = [self.actor.limit, self.critic.values, self.target.values]
        before = [numbers.clone() for numbers in own]
        super().restore(state, names)
        torch.ops.aten._foreach_copy_(own, before)
        for adam in self._adam.values():
            adam.take(float(adam.optimizer.param_groups[0]["lr"]))

    def begin(self) -> None:
        """Say that updates wait, or that episodes are too short to learn from."""
        if self.env.max_episode_length == 1 and self.collectives.rank == 0:
            print_line(ONE_STEP)
        if not self._can_learn and self.collectives.rank == 0:
            begun = self.iterations + (self.warm_up - self.replay.count) // self.num_steps
            before, due = (round(n * self.num_updates) for n in (begun, self._num_iterations))
            never = ": this run ends before, and learns nothing" * (due <= before)
            print_line(
                f"each worker's replay begins with {self.replay.count:,} steps of its environments,"
                f" and updates wait until there are more than {self.warm_up:,}{never}"
            )

    @property
    def _can_learn(self) -> bool:
        """Whether the replay holds enough; all ranks have equally many rows."""
        return self.replay.count > self.warm_up

    def act(self, obs: TensorDict) -> torch.Tensor:
        return self.actor.explore(obs, self.noise.draw())

    def record(self, before: TensorDict, actions: torch.Tensor, step: Step) -> None:
        self._after, row = step.observations, self.replay.next
        failed, spoilt = step.dones & ~step.time_outs, self.env.spoilt
        done = (before, actions / self.actor.limit, step.rewards, failed, step.time_outs, spoilt)
        self.replay.add(*done)
        self.rewards.record(row % self.num_steps, step.rewards, step.dones)

    def checked(self) -> dict[str, list[torch.Tensor]]:
        replay, parts = self.replay, self.replay.newest(self.num_steps)
        found = {f"observation/{name}": [rows[part] for part in parts] + [self._after[name][None]]
                 for name, rows in replay.observations.items()}  # fmt: skip
        found |= {"action": [replay.actions[part] for part in parts]}
        found |= {"reward": [replay.rewards[part] for part in parts]}
        return found | {"done": [replay.ends[part] > 0 for part in parts]}

    def learn(self) -> Deferred[dict[str, float]]:
        """Update critics and actor from samples of the replay, once it holds enough."""
        self._learn_moments()
        self._anneal()
        self.losses.begin()
        done, due = (round(n * self.num_updates) for n in (self.iterations - 1, self.iterations))
        config, left = self.config, due - done if self._can_learn else 0
        begun = self.updates
        for first in range(0, left, CHUNK):
            number = min(CHUNK, left - first)
            samples = self.replay.sample(number * self.batch_size, config.n_step, config.gamma)
            for i in range(number):
                self._take(samples, i * self.batch_size)
                self._critics_step()
                self._step("critic_optimizer")
                if self.updates % config.actor_delay == 0:
                    self._actors_step()
                    self._step("actor_optimizer")
                self.updates += 1
                self.beat()
        temperature = self.temperature["log"].detach().exp()
        return self.losses.means(range(begun, self.updates), temperature, self.rewards.scale)

    def _anneal(self) -> None:
        """Let learning rates fall along a cosine; one that was set falls from there."""
        done = min(1.0, self.iterations / self._num_iterations)
        self.iterations += 1
        end, before = self.config.learning_rate_end_factor, self.rate_share
        self.rate_share = end + 0.5 * (1.0 - end) * (1.0 + math.cos(math.pi * done))
        for name, adam in self._adam.items():
            self.set_learning_rate(adam.rate / before * self.rate_share, name)

    def set_learning_rate(self, rate: float, name: str = "") -> None:
        for key, adam in self._adam.items():
            adam.rate = rate if name in ("", key) else adam.rate
        self.learning_rate = self._adam["actor_optimizer"].rate

    def policy_metrics(self) -> dict[str, torch.Tensor]:
        parts = self.replay.newest(self.num_steps)
        return describe_actions(torch.cat([self.replay.actions[part] for part in parts]))

    @torch.no_grad()
    def _learn_moments(self) -> None:
        """Add the newest steps of all ranks to the moments of observations and returns."""
        parts = self.replay.newest(self.num_steps)
        for network in filter(lambda network: network.obs_groups, (self.actor, self.critic)):
            groups = [torch.cat([self.replay.observations[group][part] for part in parts])
                      for group in network.obs_groups]  # fmt: skip
            rows = torch.cat(groups, dim=-1).flatten(0, 1)
            mirror = self.mirrored and self.mirrored.of_groups(network.obs_groups)
            add_samples(network.obs_normalizer, rows, self.collectives, mirror)
        moments = [network.obs_normalizer.state_dict() for network in (self.target, self.critic)]
        torch.ops.aten._foreach_copy_(*([*one.values()] for one in moments))
        self.rewards.learn(self.collectives)

    def _take(self, samples: Samples, first: int) -> None:
        """Let the next updates be of `batch_size` samples from the `first` one on."""
        before, after, *rest = (part[first : first + self.batch_size] for part in samples)
        self.replay.observed(before, self._before)
        self.replay.observed(after, self._following)
        torch.ops.aten._foreach_copy_(self._rest, rest)
        if self.mirrored:
            self.mirrored.apply(self._before, self._following, actions=self._rest[0])

    def _learn_critics(self) -> None:
        """Write the critics' gradients for the batch."""
        actions, rewards, discounts, weights = self._rest
        actor, critic, target = self.actor, self.critic, self.target
        with torch.no_grad():
            following, log_probs = actor.sample(actor.get_latent(self._following))
            logits = target.logits(target.get_latent(self._following), following)
            probabilities = logits.softmax(dim=-1)
            lower = (probabilities @ critic.values).argmin(dim=0)
            chosen = torch.where(lower.view(-1, 1) == 0, probabilities[0], probabilities[1])
            entropy = self.temperature["log"].exp() * log_probs
            values = critic.values - entropy.unsqueeze(1)
            values = (rewards / self.rewards.scale).unsqueeze(1) + discounts.unsqueeze(1) * values
            wanted, beyond = critic.project(chosen, values)
        self.gradient_of("critic_optimizer").flat.zero_()
        logits = critic.logits(critic.get_latent(self._before), actions)
        losses = -(wanted * logits.log_softmax(dim=-1)).sum(dim=-1)
        loss = (losses.sum(dim=0) * weights).mean()
        loss.backward()
        totals = self.losses.totals
        totals[0] += loss.detach()
        totals[3] += critic.means(logits.detach()).mean()
        totals[4] += beyond

    def _learn_actor(self) -> None:
        """Write the gradients of actor and temperature for the batch."""
        weights, observed = self._rest[-1], self._before
        actor, critic, log = self.actor, self.critic, self.temperature["log"]
        self.gradient_of("actor_optimizer").flat.zero_()
        with torch.no_grad():
            latent = critic.get_latent(observed)
        with torch.set_grad_enabled(not self.config.share_cnn_encoders):
            own = actor.get_latent(observed)
        actions, log_probs = actor.sample(own)
        values = critic.means(critic.logits(latent, actions, is_frozen=True))
        alpha = log.exp()
        loss = ((alpha.detach() * log_probs - values.min(dim=0).values) * weights).mean()
        entropy = -(log_probs.detach() * weights).mean()
        (loss + alpha * (entropy - self.target_entropy * weights.mean())).backward()
        totals = self.losses.totals
        totals[1] += loss.detach()
        totals[2] += entropy

    def _step(self, name: str) -> None:
        self.reduce_parameters(name)
        self._adam[name].step()

    def _written(self) -> list[torch.Tensor]:
        """Return what an update of gradients writes, layers' own tensors included."""
        buffers = [buffer for network in self.networks().values() for buffer in network.buffers()]
        return [self.losses.totals, *buffers, *(self.gradient_of(name).flat for name in self._adam)]
