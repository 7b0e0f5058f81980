"""Training warns once of a task in which nothing can be learned, in its first iterations."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mjfleet.rl.runner import Runner

from ..env.test_env import BUNDLED, build_task

NAME = "cartpole-balance"


def train(change: Callable[[Any], object], iterations: int, is_resumed: bool = False) -> None:
    torch.manual_seed(1)
    env = build_task(NAME, "native", "cpu", num_envs=64)
    change(env)
    agent = replace(BUNDLED[NAME].defaults().agent, max_iterations=iterations)
    runner = Runner(env, agent, "cpu", 1, BUNDLED[NAME].load)
    runner.current_learning_iteration = 50 if is_resumed else 0
    runner.train(lambda _: None, lambda: None)


def set_method(name: str, method: Callable[..., Any]) -> Callable[[Any], object]:
    return lambda env: setattr(env, name, lambda *arguments: method(env, *arguments))


def spoil_rewards(env: Any) -> dict[str, torch.Tensor]:
    return dict.fromkeys(env.reward_names, torch.zeros(env.num_envs))


def spoil_observation(env: Any) -> dict[str, torch.Tensor]:
    size = env.get_observations()["actor"].shape[1]
    return dict.fromkeys(("actor", "critic"), torch.ones(env.num_envs, size))


MISTAKES = {
    "rewards()": spoil_rewards,
    "observe()['actor']": spoil_observation,
    "terminated()": lambda env: torch.ones(env.num_envs, dtype=torch.bool),
    "apply()": lambda env, action: None,
}


@pytest.mark.parametrize("where", MISTAKES)
def test_a_task_in_which_nothing_can_be_learned_is_warned_of_once(
    caplog: pytest.LogCaptureFixture, where: str
) -> None:
    method = where.partition("(")[0]
    train(set_method(method, MISTAKES[where]), iterations=5)
    about = [record.message for record in caplog.records if where in record.message]
    assert len(about) == 1


def test_a_sound_task_a_late_reward_and_a_resumed_run_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = []

    def late_reward(env: Any) -> dict[str, torch.Tensor]:
        calls.append(None)
        is_due = len(calls) > env.num_envs and len(calls) % 2
        return dict.fromkeys(env.reward_names, torch.full((env.num_envs,), float(is_due)))

    def spoil_a_speed(env: Any) -> None:
        env.on_nan, apply = "reset", env.apply
        env.apply = lambda action: (apply(action), env.sim.qvel[0].fill_(torch.nan))

    train(lambda env: None, iterations=4)
    train(spoil_a_speed, iterations=4)
    train(set_method("rewards", late_reward), iterations=4)
    train(set_method("rewards", spoil_rewards), iterations=53, is_resumed=True)
    assert not [record.message for record in caplog.records if "rewards" in record.message]
    assert not caplog.records
