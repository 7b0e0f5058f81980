"""The step that is built from what a task author writes; see contract.py."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, Self

import torch
from tensordict import TensorDict

from mjfleet.env.contract import C
from mjfleet.env.env_shard import EnvShard
from mjfleet.env.episode_statistics import Sums, episode_sums, metric_pairs
from mjfleet.env.return_checks import (
    check_action_count,
    check_names,
    check_returns,
    check_tensor,
    check_weights,
    observed_dtype,
)
from mjfleet.env.stateful_env import StatefulEnv
from mjfleet.env.step_recorder import RECORDED_FIELDS, StepRecorder
from mjfleet.sim import Simulation
from mjfleet.sim.deferred import Deferred, read


class Env(StatefulEnv[C]):
    """`num_envs` environments with observations, rewards and episodes that reset themselves.

    A task's class is derived from this one, and writes the methods of EnvContract.

    One step calls `apply`, steps the physics `cfg.decimation` times, and calls `after_physics`,
    `terminated`, `truncated`, `rewards` and `metrics`. Where an environment is done, `end_episode`
    reads what the episode has left, the simulation and the declared state are reset, and
    `reset_worlds` writes where the next one begins. `observe` comes last: an environment that is
    done thus observes the beginning of its next episode. An episode ends as a time-out after
    `max_episode_length` steps, or where `truncated` says so.
    """

    reward_names: tuple[str, ...]
    metric_names: tuple[str, ...]
    failed: torch.Tensor
    """What `terminated` has returned in the newest step, `(num_envs,)`, bool."""
    terms: torch.Tensor
    """Weighted reward terms of the newest step, `(terms, num_envs)`."""
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
        places: Sequence[Path] = (Path(),),
    ) -> None:
        """Build the environments and reset them.

        Args:
            cfg: the task's numbers.
            seed: of `uniform` and `normal`.
            shard: this worker's share of an evaluation's environments, which draw the same numbers
                however many workers share them. None: training.
            group_size: so many neighbours have the same number and draw the same random numbers, so
                that their actions alone make them different. A divisor of `num_envs`.
            places: the task's folder, and runs that have copies of files that `cfg` names, see
                mjfleet/utils/input_files.py.

        Raises:
            UserError: the model has no actuator, a method returns a wrong type or shape, or a state
                is declared wrongly or not finite.
        """
        self.cfg = cfg
        self.places = tuple(places)
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
        self.num_actions = check_action_count(self)
        self._begin_state()
        self.action = self.add_state("action", self.num_actions)
        """The newest action, `(num_envs, num_actions)`, float32; zero in a new episode."""
        self.previous_action = self.add_state("previous_action", self.num_actions)
        """The action before that, zero in the first step of an episode."""
        self.episode_length_buf = self.add_state("episode_length_buf", dtype=torch.long)
        # Where the episode counts: it has not begun with `start_at_random_times`, nor been spoilt.
        self._whole = self.add_state("_whole", dtype=torch.bool, reset=True)
        # With `on_nan` reset: environments whose newest observation was not finite.
        self._unseeable = self.add_state("_unseeable", dtype=torch.bool, reset="keep")
        everywhere = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        self.never = ~everywhere
        self.failed = self.spoilt = self.never
        """Environments that the newest step has reset since a number was not finite. The step and
        the episode count in no statistics."""
        self._nan_resets = torch.zeros((), dtype=torch.long, device=self.device)
        self.step_count = 0
        """Steps since all environments were reset together."""
        self.on_close = ExitStack()
        self.terms = self.measured = self._sums = self._ended = torch.empty(0)
        self._step_sums = self._episode_sums = self._episodes = torch.empty(0)
        self._rows = 0  # 1 and the number of reward terms.
        self._one = torch.ones(self.num_envs, device=self.device)
        self._weights: torch.Tensor | None = None
        self._off = frozenset[str]()  # Reward terms whose weight is 0.
        self.reward_names = self.metric_names = ()
        self._set_up([*dir(Env), *vars(self)])
        self._reset(everywhere)
        self._check_finite()
        self._prepare_statistics()
        self._observations = self._observe()

    @property
    def unwrapped(self) -> "Env[C]":
        """The environment itself. rsl_rl asks for it, since environments may be wrapped."""
        return self

    def close(self) -> None:
        """Undo the settings that `mjfleet.make` has made for this environment. `with` calls it."""
        self.on_close.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get_observations(self) -> TensorDict:
        """Return the current observations: groups as `observe` returns them, float32; images of
        bytes stay bytes."""
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

        Raises:
            UserError: `actions` are no such tensor.
        """
        if not isinstance(actions, torch.Tensor) or actions.shape != self.action.shape:
            what = f"{type(self).__name__}.step(): `actions`"
            check_tensor(what, actions, self.num_actions, self)
        self.step_count += 1
        self.previous_action.copy_(self.action)
        self.action.copy_(actions.detach())  # State has no gradient.
        self.apply(self.action)
        if self.recorder:
            self.recorder.before_physics(self.sim, self.debug_vis, self.ghost)
        self.sim.step(self.cfg.decimation)
        if self.recorder:
            self.recorder.after_physics(self.sim)
        self.episode_length_buf += 1
        for read_sensors in self._readers:
            read_sensors()
        self.after_physics()
        failed = self.terminated() if self.ends_on_failure else self.never
        # State, which is a view, is reset before this step ends.
        self.failed = failed.clone() if failed._is_view() else failed
        truncated = self.truncated()
        terms, metrics = self.compute(self.rewards()), self.metrics()
        check_names(self, terms, metrics)
        pairs = metric_pairs(metrics, self._one)
        values = torch.stack((self._one, *terms.values(), *pairs))
        values = values.to(torch.float32)
        if self._weights is not None:
            values *= self._weights
        self.terms, self.measured = values[1 : self._rows], values[self._rows :]
        if self.recorder:
            self.recorder.after_rewards(self.terms)
        if self.on_nan == "reset":
            self.spoilt = self._spoilt_envs(self.terms)
            self._nan_resets += self.spoilt.sum()
            values.masked_fill_(self.spoilt, 0.0)  # The step counts in no mean.
            self._whole &= ~self.spoilt
            self.failed = self.failed | self.spoilt
        reward = self.terms.sum(dim=0)
        is_last = self.episode_length_buf >= self.max_episode_length
        if truncated is not self.never:
            is_last |= truncated
        dones, time_outs = self.failed | is_last, is_last > self.failed
        self._record(values, dones)
        for advance in self._timers:
            advance()
        if self.before_reset:
            self.before_reset(dones)
        self.end_episode(dones)
        self._reset(dones)
        self._observations = self._observe()
        return self._observations, reward, dones, {"time_outs": time_outs}

    def reset(self) -> None:
        """Begin a new episode everywhere. Unfinished episodes do not count."""
        self.step_count = 0
        self._reset(torch.ones_like(self._whole))
        self._observations = self._observe()

    def start_at_random_times(self) -> None:
        """Begin new episodes everywhere, at random times, so that time-outs spread out."""
        self.step_count = 0
        self._reset(torch.ones_like(self._whole))  # `observe` has been called in the earlier ones.
        self.episode_length_buf.random_(self.max_episode_length, generator=self.generator)
        self._whole.copy_(self.episode_length_buf == 0)
        self._observations = self._observe()

    def take_statistics(self) -> Sums:
        """Return the values of `deferred_statistics`. Waits for the device."""
        return read(self.deferred_statistics())[0]

    def deferred_statistics(self) -> Deferred[Sums]:
        """Return what happened since the last call.

        `return`, `length` and `reward/<name>` are of the episodes that ended, `task/<name>` and
        `reward` of all steps, `nan_resets` is the number of resets because a number was not finite.
        """
        reward_names, metric_names = self.reward_names, self.metric_names
        counters = self._episodes.view(1, -1), self._episode_sums, self._step_sums
        sums = [counter.sum(dim=1, dtype=torch.float64) for counter in counters]
        totals = torch.cat((*sums, self._nan_resets.view(1)))
        for counter in (*counters, self._nan_resets):
            counter.zero_()

        def decode(numbers: list[float]) -> Sums:
            episodes, lengths, *rest, resets = numbers
            count = len(reward_names)
            of_episodes, steps, *of_steps = rest[:count], *rest[count:]
            rewards, measured = of_steps[:count], of_steps[count:]
            found = {"reward": (sum(rewards), steps), "nan_resets": (resets, 1.0)}
            return found | episode_sums(
                episodes, lengths, [*of_episodes, *measured], reward_names, metric_names
            )

        return Deferred(totals, decode)

    def compute(
        self, terms: Mapping[str, torch.Tensor | Callable[[], torch.Tensor]]
    ) -> dict[str, torch.Tensor]:
        """Return reward terms `(num_envs,)`: call those that are functions. A function whose weight
        is 0 is not called; its term is 0."""
        found = {}
        for name, term in terms.items():
            if callable(term):
                found[name] = torch.zeros_like(self._one) if name in self._off else term()
            else:
                found[name] = term
        return found

    def _prepare_statistics(self) -> None:
        """Ask the task for its weights, and for the names of what is summed."""
        weights = check_weights(self)
        self._off = frozenset(name for name, weight in weights.items() if weight == 0)
        self.reward_names, self.metric_names = check_returns(self)
        count, sums = 1 + len(self.reward_names), 2 * len(self.metric_names)
        self._rows = count
        if weights:
            column = [1.0, *(weights.get(name, 1.0) for name in self.reward_names), *[1.0] * sums]
            self._weights = torch.tensor(column, device=self.device).unsqueeze(1)
        # Rows: 1, the terms, and dividend and divisor of each metric. Sums of an episode so far;
        # since statistics were read, of all steps, of episodes that ended, and their number.
        self._sums = self._states.add("_sums", (count,), torch.float32)
        self._step_sums = torch.zeros(count + sums, self.num_envs, device=self.device)
        self._episode_sums = torch.zeros(count, self.num_envs, device=self.device)
        self._episodes = torch.zeros(self.num_envs, device=self.device)
        self._ended = torch.zeros(self.num_envs, device=self.device)
        self.terms, self.measured = self._step_sums.clone().split((count, sums))
        self.terms = self.terms[1:]

    def _spoilt_envs(self, terms: torch.Tensor) -> torch.Tensor:
        """Return where a state, a control, a reward, or the observation before this step, is not
        finite."""
        # A sum is finite only if all its terms are. MuJoCo ignores a control that is not.
        fields = [getattr(self.sim, name) for name in (*RECORDED_FIELDS, "ctrl")]
        sums = [field.flatten(1).sum(dim=1, dtype=torch.float64) for field in fields]
        total = torch.stack((terms.sum(dim=0).double(), *sums)).sum(dim=0)
        return self._unseeable | ~total.isfinite()

    def _record(self, values: torch.Tensor, dones: torch.Tensor) -> None:
        """Add a step to the statistics. Called before the environments that are done are reset."""
        self._step_sums += values
        self._sums += values[: self._rows].T
        torch.logical_and(dones, self._whole, out=self._ended)
        self._episode_sums.addcmul_(self._sums.T, self._ended)
        self._episodes += self._ended

    def _reset(self, mask: torch.Tensor) -> None:
        self.sim.reset(mask)
        self._states.reset(mask)
        for begin in self._resets:
            begin(mask)
        self.reset_worlds(mask)
        self.sim.forward(mask)

    def _observe(self) -> TensorDict:
        # Copies: a group may be a view of the live state, and the caller keeps the observation.
        groups = {k: v.to(observed_dtype(v), copy=True) for k, v in self.observe().items()}
        if self.on_nan == "reset":
            # The policy sees zeros once; the next step resets the environment, without a reward.
            numbers = [group for group in groups.values() if group.is_floating_point()]
            sums = [group.flatten(1).sum(dim=1, dtype=torch.float64) for group in numbers]
            self._unseeable.copy_(~torch.stack([self._one, *sums]).isfinite().all(dim=0))
            for group in groups.values():
                group.masked_fill_(self._unseeable.view(-1, *[1] * (group.ndim - 1)), 0.0)
        return TensorDict(groups, batch_size=[self.num_envs], device=self.device)
