"""How good a policy is: sums over whole episodes of its actions. Runs in a worker."""

from collections.abc import Callable
from typing import Any

import torch

from mjfleet.env import Env, EpisodeStatistics
from mjfleet.env.env_state import EnvState
from mjfleet.env.environment import EVALUATION_SEED
from mjfleet.rl.checkpoint_files import own_random_numbers

LOOK_STEPS = 50
"""After how many steps it is asked anew whether all episodes have ended: the device is waited for.
"""


class Evaluator:
    """Evaluates one policy after the other in the same episodes, in worlds of their own.

    Each world plays one episode, from the state in which it was built. Each rank has an evaluator,
    of some of the worlds.
    """

    def __init__(self, env: Env[Any], interval: int) -> None:
        """Remember the state of the worlds.

        Args:
            env: worlds that have not been stepped.
            interval: iterations from one evaluation to the next.
        """
        self.interval = interval
        self._env = env
        self._env_state = EnvState(env)
        self._sim_state = {name: value.clone() for name, value in env.sim.state().items()}

    def evaluate(self, policy: Any, beat: Callable[[], object]) -> EpisodeStatistics:
        """Play the episodes with a policy's mean actions; waits for the device now and then.

        Neither the policy's memory nor any random generator is another one afterwards.

        Args:
            policy: rsl_rl's model.
            beat: called after each step.
        """

        def after_step(dones: torch.Tensor) -> None:
            policy.reset(dones)
            beat()

        env, memory = self._env, policy.get_hidden_state()
        policy.reset()
        with own_random_numbers(EVALUATION_SEED, str(env.device)), torch.inference_mode():
            env.sim.restore(self._sim_state)
            self._env_state.restore_built()
            rows = play_episodes(env, policy, after_step=after_step)
        policy.reset(hidden_state=memory)
        return _statistics(env, rows)


def play_episodes(
    env: Env[Any],
    act: Callable[[Any], torch.Tensor],
    each: int = 1,
    after_step: Callable[[torch.Tensor], object] = lambda dones: None,
) -> torch.Tensor:
    """Play so many episodes in each world, from where it is now.

    Args:
        env: worlds at the beginning of an episode.
        act: actions for observations.
        each: episodes of each world.
        after_step: told which worlds are done, `(num_envs,)`, bool.

    Returns:
        Sums over each episode, `(each * num_envs, 1 + terms + 2 * metrics)`: its steps, each reward
        term, then of each metric what is divided and by what. First the first of each world.
    """
    played = torch.zeros(env.num_envs, dtype=torch.long, device=env.device)
    ones = torch.ones(1, env.num_envs, device=env.device)
    shape = each + 1, 1 + len(env.terms) + len(env.measured), env.num_envs
    sums = torch.zeros(shape, device=env.device)  # The last is of what follows.
    for step in range(each * env.max_episode_length):
        if step % LOOK_STEPS == 0 and (played >= each).all():
            break
        _, _, dones, _ = env.step(act(env.get_observations()))
        values = torch.cat((ones, env.terms, env.measured)).unsqueeze(0)
        sums.scatter_add_(0, played.clamp(max=each).expand_as(values), values)
        played += dones
        after_step(dones)
    return sums[:-1].transpose(1, 2).flatten(0, 1)


def _statistics(env: Env[Any], rows: torch.Tensor) -> EpisodeStatistics:
    """The episodes together."""
    length, *rest = rows.double().sum(dim=0).tolist()
    terms, sums = rest[: len(env.reward_names)], rest[len(env.reward_names) :]
    return EpisodeStatistics(
        episodes=len(rows),
        returns=sum(terms),
        lengths=length,
        terms=dict(zip(env.reward_names, terms, strict=True)),
        rewards=sum(terms),
        steps=round(length),
        metrics=dict(zip(env.metric_names, zip(sums[::2], sums[1::2], strict=True), strict=True)),
    )
