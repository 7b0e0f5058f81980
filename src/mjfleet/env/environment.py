"""The step that is built from what a task author writes; see contract.py."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from tensordict import TensorDict

from mjfleet.env.contract import C
from mjfleet.env.episode_statistics import Sums, episode_sums, stack_metrics
from mjfleet.env.return_checks import check_returns
from mjfleet.env.stateful_env import StatefulEnv
from mjfleet.env.step_recorder import RESULTS, StepRecorder
from mjfleet.errors import UserError
from mjfleet.sim import Simulation
from mjfleet.sim.unread import Unread, read

EVALUATION_SEED = 2**31 - 1
"""Seed of every evaluation, so that all runs are evaluated in the same episodes."""


@dataclass(frozen=True)
class EnvShard:
    """A worker's share of the environments in which policies are evaluated."""

    first: int  #: Number of the first environment of this worker.
    count: int  #: Number of environments of this worker.
    total: int  #: Number of environments of all workers.
    seed: int = EVALUATION_SEED


class Env(StatefulEnv[C]):
    """`num_envs` environments with observations, rewards and episodes that reset themselves.

    A task's class is derived from this one, and writes the methods of EnvContract.

    One step calls `apply`, steps the physics `cfg.decimation` times, and calls `after_physics`,
    `rewards`, `terminated` and `metrics`. Where an environment is done, `end_episode` reads what
    the episode has left, the simulation and the declared state are reset, and `reset_worlds` writes
    where the next one begins. `observe` comes last: an environment that is done thus observes the
    beginning of its next episode. An episode of `max_episode_length` steps ends as a time-out.
    """

    reward_names: tuple[str, ...]
    metric_names: tuple[str, ...]
    terms: torch.Tensor
    """Reward terms of the newest step, `(terms, num_envs)`."""
    measured: torch.Tensor
    """Dividend and divisor of each metric in the newest step, `(2 * metrics, num_envs)`."""
    recorder: StepRecorder | None = None
    """Records the states of each step for videos and NaN dumps."""
    before_reset: Callable[[torch.Tensor], None] | None = None
    """Called in each step with the environments that are done, before they are reset."""
    on_nan: Literal["stop", "reset"] = "stop"
    """With `reset`, an environment whose state, reward or observation is not finite has failed, and
    counts in no statistics."""

    def __init__(
        self,
        cfg: C,
        sim: Simulation,
        seed: int,
        shard: EnvShard | None = None,
        group_size: int = 1,
    ) -> None:
        """Build the environments and reset them.

        Args:
            cfg: the task's numbers.
            sim: the simulation.
            seed: of `uniform` and `normal`.
            shard: this worker's share of an evaluation's environments, which draw the same numbers
                however many workers share them. None: training.
            group_size: so many neighbours have the same number and draw the same random numbers, so
                that their actions alone make them different. A divisor of `num_envs`.

        Raises:
            UserError: the model has no actuator, a method returns a wrong type or shape, or a state
                is declared wrongly or not finite.
        """
        self.cfg = cfg
        self.sim = sim
        self.num_envs = sim.num_envs
        self.device = sim.device
        self.step_dt = cfg.decimation * float(sim.model.opt.timestep)
        """Simulated seconds per environment step."""
        self.max_episode_length = max(1, round(cfg.episode_seconds / self.step_dt))
        self.shard = shard
        self.is_evaluation = shard is not None
        """Whether policies are evaluated or played here, on levels that then stay the same."""
        self.evaluated: Any = None
        """The `EvaluatedLevels` of the first curriculum in an evaluation, or None."""
        assert self.num_envs % group_size == 0
        self.group_size = group_size
        self.env_ids = torch.arange(self.num_envs, device=self.device) // group_size
        """Numbers of the environments, `(num_envs,)`, long: 0 to `num_envs` - 1 in training, or the
        number of the group of each."""
        self.env_ids += shard.first if shard else 0
        # Seeds of torch's own generator, which draws the actions, are below 2^31.
        self.generator = torch.Generator(self.device).manual_seed(seed + 2**31)
        self.num_actions = self.count_actions()
        if self.num_actions < 1:
            raise UserError(f"{type(self).__name__}: the model has no actuator to act with.")
        self._begin_state()
        self.action = self.add_state("action", self.num_actions)
        """The newest action, `(num_envs, num_actions)`, float32; zero in a new episode."""
        self.previous_action = self.add_state("previous_action", self.num_actions)
        """The action before that, zero in the first step of an episode."""
        self.episode_length_buf = self.add_state("episode_length_buf", dtype=torch.long)
        # Where the episode counts: it has not begun with `start_at_random_times`, nor been spoilt.
        self._whole = self.add_state("_whole", dtype=torch.bool, reset="keep", start=True)
        # With `on_nan` reset: environments whose newest observation was not finite.
        self._unseeable = self.add_state("_unseeable", dtype=torch.bool, reset="keep")
        everywhere = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        self.spoilt = ~everywhere
        """Environments that the newest step has reset since a number was not finite. The step and
        the episode count in no statistics."""
        self._nan_resets = torch.zeros((), dtype=torch.long, device=self.device)
        self.on_close = ExitStack()
        self.terms = self.measured = self._term_sums = self._totals = torch.empty(0)
        self._steps = 0  # Since statistics were read.
        self.reward_names = self.metric_names = ()
        self._set_up([*dir(Env), *vars(self)])
        self._reset(everywhere)
        self._check_finite()
        self.reward_names, self.metric_names = check_returns(self)
        terms, sums = len(self.reward_names), 2 * len(self.metric_names)
        self.terms = torch.zeros(terms, self.num_envs, device=self.device)
        self.measured = torch.zeros(sums, self.num_envs, device=self.device)
        self._term_sums = self._states.add("_term_sums", (terms,), torch.float32)
        self._totals = torch.zeros(3 + terms + sums, dtype=torch.float64, device=self.device)
        self._observations = self._observe()

    @property
    def unwrapped(self) -> "Env[C]":
        """The environment itself. rsl_rl asks for it, since environments may be wrapped."""
        return self

    def close(self) -> None:
        """Give back what `mjfleet.make` has set for this environment. `with` calls it."""
        self.on_close.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get_observations(self) -> TensorDict:
        """Return the current observations: groups as `observe` returns them, float32."""
        return self._observations

    def step(
        self, actions: torch.Tensor
    ) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Advance every environment by one step. The class's docstring gives the order.

        Args:
            actions: `(num_envs, num_actions)`, float32.

        Returns:
            Observations; rewards `(num_envs,)`, float32; dones `(num_envs,)`, bool; and extras,
            whose "time_outs" `(num_envs,)`, bool, are the dones that are not failures.
        """
        self.previous_action.copy_(self.action)
        self.action.copy_(actions)
        self.apply(self.action)
        if self.recorder:
            self.recorder.before_physics(self.sim, self.debug_vis)
        self.sim.step(self.cfg.decimation)
        if self.recorder:
            self.recorder.after_physics(self.sim)
        self.episode_length_buf += 1
        for read_sensors in self._readers:
            read_sensors()
        self.after_physics()
        terms = torch.stack(tuple(self.rewards().values())).to(torch.float32)
        if self.recorder:
            self.recorder.after_rewards(terms)
        failed = self.terminated()
        measured = stack_metrics(self.metrics()) if self.metric_names else self.measured
        if self.on_nan == "reset":
            self.spoilt = self._spoilt_envs(terms)
            self._nan_resets += self.spoilt.sum()
            terms = terms.masked_fill(self.spoilt, 0.0)
            measured = measured.masked_fill(self.spoilt, 0.0)  # Counts in no mean, either.
            self._whole &= ~self.spoilt
            failed = failed | self.spoilt
        reward = terms.sum(dim=0)
        self.terms, self.measured = terms, measured
        time_outs = (self.episode_length_buf >= self.max_episode_length) & ~failed
        dones = failed | time_outs
        self._record(terms, reward, dones)
        if self.before_reset:
            self.before_reset(dones)
        for advance in self._timers:
            advance()
        self.end_episode(dones)
        self._reset(dones)
        self._observations = self._observe()
        return self._observations, reward, dones, {"time_outs": time_outs}

    def reset(self) -> None:
        """Begin a new episode everywhere. Unfinished episodes do not count."""
        self._whole.fill_(True)
        self._reset(torch.ones_like(self._whole))
        self._observations = self._observe()

    def start_at_random_times(self) -> None:
        """Begin new episodes everywhere, at random times, so that time-outs spread out."""
        self._reset(torch.ones_like(self._whole))  # `observe` has been called in the earlier ones.
        self.episode_length_buf.random_(self.max_episode_length, generator=self.generator)
        self._whole.copy_(self.episode_length_buf == 0)
        self._observations = self._observe()

    def take_statistics(self) -> Sums:
        """Return what `unread_statistics` stands for. Waits for the device."""
        return read(self.unread_statistics())[0]

    def unread_statistics(self) -> Unread[Sums]:
        """Return what happened since the last call.

        `return`, `length` and `reward/<name>` are of the episodes that ended, `task/<name>` and
        `reward` of all steps, `nan_resets` is the number of resets because a number was not finite.
        """
        steps, names = self._steps * self.num_envs, (self.reward_names, self.metric_names)
        totals = torch.cat((self._totals, self._nan_resets.view(1)))
        for counter in (self._totals, self._nan_resets):
            counter.zero_()
        self._steps = 0

        def decode(numbers: list[float]) -> Sums:
            episodes, lengths, rewards, *rest, resets = numbers
            # A step that reset its environment has no reward.
            of_steps = {"reward": (rewards, steps - resets), "nan_resets": (resets, 1.0)}
            return episode_sums(episodes, lengths, rest, *names) | of_steps

        return Unread(totals, decode)

    def uniform(self, size: int, low: float, high: float) -> torch.Tensor:
        """Return random numbers `(num_envs, size)` in [low, high) from this worker's generator."""
        return self._draw(torch.rand, size) * (high - low) + low

    def normal(self, size: int) -> torch.Tensor:
        """Return standard normal numbers `(num_envs, size)` from this worker's generator."""
        return self._draw(torch.randn, size)

    def _draw(self, random: Callable[..., torch.Tensor], size: int) -> torch.Tensor:
        """Return random numbers `(num_envs, size)`. Skips those of other workers' environments."""
        shard = self.shard
        count = shard.total if shard else self.num_envs // self.group_size
        drawn = random(count, size, generator=self.generator, device=self.device)
        if self.group_size > 1:
            return drawn.repeat_interleave(self.group_size, dim=0)
        return drawn[shard.first : shard.first + shard.count] if shard else drawn

    def _spoilt_envs(self, terms: torch.Tensor) -> torch.Tensor:
        """Return where a state, a reward, or the observation before this step, is not finite."""
        spoilt = self._unseeable | ~terms.sum(dim=0).isfinite()
        for name in RESULTS:
            spoilt = spoilt | ~getattr(self.sim, name).isfinite().all(dim=1)
        return spoilt

    def _record(self, terms: torch.Tensor, reward: torch.Tensor, dones: torch.Tensor) -> None:
        """Add a step to the statistics. Called before the environments that are done are reset."""
        self._term_sums += terms.T
        ended = (dones & self._whole).to(torch.float32)
        lengths = (self.episode_length_buf * ended).sum()
        counts = torch.stack((ended.sum(), lengths, reward.sum()))
        self._totals += torch.cat((counts, ended @ self._term_sums, self.measured.sum(dim=1)))
        self._whole |= dones
        self._steps += 1

    def _reset(self, mask: torch.Tensor) -> None:
        self.sim.reset(mask)
        self._states.reset(mask)
        for begin in self._resets:
            begin(mask)
        self.reset_worlds(mask)
        self.sim.forward(mask)

    def _observe(self) -> TensorDict:
        # Copies: a group may be a view of the live state, and the caller keeps the observation.
        groups = {k: v.to(torch.float32, copy=True) for k, v in self.observe().items()}
        if self.on_nan == "reset":
            # The policy sees zeros once; the next step resets the environment, without a reward.
            finite = [group.isfinite().flatten(1).all(dim=1) for group in groups.values()]
            self._unseeable.copy_(~torch.stack(finite).all(dim=0))
            for group in groups.values():
                group.masked_fill_(self._unseeable.view(-1, *[1] * (group.ndim - 1)), 0.0)
        return TensorDict(groups, batch_size=[self.num_envs], device=self.device)
