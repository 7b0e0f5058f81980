"""Warns once of a task in which nothing can be learned, after its first rollouts. On rank 0."""

import logging
from collections.abc import Iterator
from typing import Any

import torch

from mjfleet.config import AgentConfig
from mjfleet.env import Env, learnability

LAST_ITERATION = 3  # The rollouts up to here are looked at, which takes a few milliseconds each.

logger = logging.getLogger(__name__)


class FirstRollouts:
    """Looks at the first rollouts of a run; what all of them show is a warning.

    A reward, say, may be zero at first because a goal is seldom reached.
    """

    def __init__(self, env: Env[Any], agent: AgentConfig) -> None:
        self._env, self._agent = env, agent
        self._found: list[str] | None = None

    @torch.inference_mode()
    def look(self, storage: Any, iteration: int) -> None:
        """Look at the rollout of an iteration, counted from 1 since the run began."""
        last = min(LAST_ITERATION, self._agent.max_iterations)
        if iteration > last:
            return
        now = self._signs(storage)
        self._found = [sign for sign in now if self._found is None or sign in self._found]
        if iteration == last:
            for sign in self._found:
                logger.warning("warning: %s", sign)

    def _signs(self, storage: Any) -> Iterator[str]:
        """Yield what is wrong with a rollout, in the words of `mjfleet check-task`."""
        env, recorder = self._env, self._env.recorder
        assert recorder
        groups = (*self._agent.obs_groups.actor, *self._agent.obs_groups.critic)
        found = {
            f"observe()[{name!r}]": learnability.constant_observation(
                storage.observations[name].flatten(2)
            )
            for name in dict.fromkeys(groups)
        }
        # Without the values that the storage adds at time-outs. With `on_nan` reset, some numbers
        # of environments that were reset are not finite.
        rewards = recorder.tensors["terms"].sum(dim=2).nan_to_num(0.0, 0.0, 0.0)
        may_fail = type(env).terminated is not Env.terminated
        found["rewards()"] = learnability.constant_reward(rewards, may_fail=may_fail)
        if env.max_episode_length > 2:
            found["terminated()"] = learnability.ends_at_once(storage.dones.squeeze(2))
        if "end/qvel" in recorder.tensors:
            changes = recorder.tensors["end/qvel"] - recorder.tensors["start/qvel"]
            # Without the policy's mean, which follows the state and so what the state does next.
            noise = storage.actions - storage.distribution_params[0]
            found["apply()"] = learnability.idle_actions(noise, changes.nan_to_num(0.0, 0.0, 0.0))
        yield from (f"{where}: {sign}" for where, sign in found.items() if sign is not None)
