"""Evaluates a policy by whole episodes of its mean actions. Runs in a worker."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from mjfleet.env import Env
from mjfleet.env.env_shard import EVALUATION_SEED
from mjfleet.env.episode_statistics import Sums, episode_sums
from mjfleet.env.random_numbers import own_random_numbers
from mjfleet.errors import UserError
from mjfleet.rl.checks.simulation_warnings import WARNING_PREFIX, SimulationWarnings, warning_values

LOOK_STEPS = 25
"""Steps between two checks whether all episodes have ended, which wait for the device."""

PREFIX = "eval/"
"""Prefix of the names of an evaluation's numbers."""
HARMLESS = "BAD", "INERTIA"
"""Beginnings of MuJoCo's warnings by which no contact or constraint is lost."""


def lost_contacts(ranks: Sequence[Mapping[str, float]]) -> bool:
    """Return whether an evaluation lost contacts or constraints, by the values of each rank."""
    begin = PREFIX + WARNING_PREFIX
    kinds = {k for values in ranks for k, n in values.items() if n and k.startswith(begin)}
    return any(not kind.removeprefix(begin).startswith(HARMLESS) for kind in kinds)


class Evaluator:
    """Evaluates policies in the same episodes each time, in environments of its own.

    Each environment plays one episode from the state in which it was built. Each rank evaluates in
    its share of the environments.
    """

    def __init__(self, env: Env[Any], interval: int) -> None:
        """Evaluate every `interval` iterations in `env`, which has not been stepped.

        Raises:
            UserError: there are fewer environments than levels to evaluate.
        """
        self.interval = interval
        self._env = env
        self._begin, levels = env.keep(), env.evaluated
        self.levels = levels.numbers if levels else ()
        """On which the task is evaluated; none if it has no curriculum."""
        self._level = levels.of_envs if levels else None
        self._names = levels.names if levels else ()
        total = env.shard.total if env.shard else env.num_envs
        if total < len(self.levels):
            raise UserError(
                f"--eval-envs is {total}; it must be at least {len(self.levels)}, one for each "
                "level on which the task is evaluated."
            )
        self.judged_by = {"envs": total, "levels": [*self.levels]}
        """What must be equal for returns of two evaluations to be compared."""
        self._begin_sim = env.sim.keep()
        self._found, self._warnings = dict[str, int](), SimulationWarnings()
        width = 1 + len(env.reward_names) + 2 * len(env.metric_names)
        self.nothing = self._sums(torch.full((env.num_envs, width), torch.nan, device=env.device))
        """What `evaluate` returns if no episode is played."""

    def evaluate(self, policy: Any, beat: Callable[[], object]) -> Sums:
        """Play the episodes with the policy's mean actions, and return their sums.

        Afterwards the policy's hidden state and all random generators are what they were before.
        Waits for the device now and then.

        Args:
            policy: rsl_rl's model.
            beat: called after each step.
        """
        env, hidden_state = self._env, policy.get_hidden_state()
        policy.reset()
        with own_random_numbers(EVALUATION_SEED, str(env.device)), torch.inference_mode():
            self._begin_sim()
            self._begin()
            episodes = Episodes(env, policy, 1, policy.reset).play(beat)
            # This enlarges buffers that have overflowed, for the next evaluation.
            self._found = env.sim.warnings()
        policy.reset(hidden_state=hidden_state)
        return self._sums(episodes)

    def take_warnings(self) -> Mapping[str, float]:
        """Return this rank's values of what was evaluated since the last call: `warning_values`,
        each name after PREFIX."""
        sim, found, self._found = self._env.sim, self._found, {}
        values = warning_values(sim.warning_kinds, found, sim.buffer_use)
        return {f"{PREFIX}{name}": value for name, value in values.items()}

    def describe_warnings(self, ranks: Sequence[Mapping[str, float]]) -> list[str]:
        """Return the warnings about evaluations that are due, from the values of each rank."""
        own = [{k.removeprefix(PREFIX): n for k, n in values.items() if k.startswith(PREFIX)}
               for values in ranks]  # fmt: skip
        what = "the policy is not taken for the best: " if lost_contacts(ranks) else ""
        texts = self._warnings.describe(own, self._env.sim.buffer_use, 0)
        return [f"in an evaluation, {what}{text}" for text in texts]

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return what evaluations change that later ones depend on: on warp, the buffers' room."""
        return {name: v for name, v in self._env.sim.state().items() if name == "room"}

    def load_state_dict(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Restore what `state_dict` returned."""
        self._env.sim.restore(saved)

    def _sums(self, episodes: torch.Tensor) -> Sums:
        """Return the sums of what `Episodes` returned, by the names of `env.take_statistics`, and
        the returns on each level as `level/<n>`; of clips, all but rewards: `clip/<name>/<metric>`.
        """
        env, is_counted = self._env, episodes[:, 0].isfinite()
        counted = episodes[is_counted].double()
        lengths, *rest = counted.sum(dim=0).tolist()
        names = env.reward_names, env.metric_names
        sums = episode_sums(len(counted), lengths, rest, *names)
        for number in self.levels:
            assert self._level is not None
            part = counted[self._level[is_counted] == number]
            lengths, *rest = part.sum(dim=0).tolist()
            found = episode_sums(len(part), lengths, rest, *names)
            if not self._names:
                sums[f"level/{number}"] = found["return"]
                continue
            kept = {k.removeprefix("task/"): v for k, v in found.items() if k[:7] != "reward/"}
            sums |= {f"clip/{self._names[number]}/{k}": v for k, v in kept.items()}
        return sums


class Episodes:
    """Plays whole episodes in every environment, and sums what happens in each."""

    def __init__(
        self,
        env: Env[Any],
        act: Callable[[Any], torch.Tensor],
        per_env: int = 1,
        after_step: Callable[[torch.Tensor], object] = lambda dones: None,
    ) -> None:
        """Play nothing yet.

        Args:
            act: returns the actions for observations.
            per_env: number of episodes of an environment.
            after_step: called with the mask of environments whose episode has ended, `(num_envs,)`.
        """
        self._act = act
        self._env, self._per_env, self._after_step = env, per_env, after_step
        self._played = torch.zeros(env.num_envs, dtype=torch.long, device=env.device)
        self._ones = torch.ones(1, env.num_envs, device=env.device)
        # The last entry collects all later steps.
        shape = per_env + 1, 1 + len(env.terms) + len(env.measured), env.num_envs
        self._sums = torch.zeros(shape, device=env.device)

    def play(self, beat: Callable[[], object] = lambda: None) -> torch.Tensor:
        """Play the episodes; the first episode of each environment starts from the current state.

        Args:
            beat: called after each step.

        Returns:
            Sums over each episode, `(per_env * num_envs, 1 + terms + 2 * metrics)`: its steps, each
            reward term, and dividend and divisor of each metric. The first episodes of all
            environments come first. The steps of an episode that does not count are NaN: a number
            was not finite, and the environment was reset, see `Env.on_nan`.
        """
        for left in range(self._per_env * self._env.max_episode_length, 0, -LOOK_STEPS):
            for _ in range(min(left, LOOK_STEPS)):
                self._take_step()
                beat()
            if (self._played >= self._per_env).all():
                break
        return self._sums[:-1].transpose(1, 2).flatten(0, 1)

    def _take_step(self) -> None:
        env = self._env
        _, _, dones, _ = env.step(self._act(env.get_observations()))
        steps = self._ones.masked_fill(env.spoilt, torch.nan)
        values = torch.cat((steps, env.terms, env.measured)).unsqueeze(0)
        to = self._played.clamp(max=self._per_env).expand_as(values)
        self._sums.scatter_add_(0, to, values)
        self._played += dones
        self._after_step(dones)
