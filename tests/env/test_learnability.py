"""Signs that nothing can be learned in a task, and that tasks which can be learned show none."""

import pytest
import torch

from mjfleet.env import learnability

from .test_env import build_task

STEPS = 40


def rollout(name: str, *, acts: bool) -> tuple[torch.Tensor, ...]:
    """Random actions, what they change, rewards, dones and the actor's observations."""
    env = build_task(name, "native", "cpu", num_envs=64)
    torch.manual_seed(0)
    rows = []
    for _ in range(STEPS):
        before, action = env.sim.qvel.clone(), torch.randn(64, env.num_actions)
        groups, reward, dones, _ = env.step(action if acts else torch.zeros_like(action))
        rows.append((action, env.sim.qvel - before, reward, dones, groups["actor"]))
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


@pytest.mark.parametrize("name", ["cartpole-balance", "cartpole-swingup", "go1-velocity-flat"])
def test_a_task_that_can_be_learned_shows_no_signs(name: str) -> None:
    actions, changes, rewards, dones, observations = rollout(name, acts=True)
    assert learnability.idle_actions(actions, changes) is None
    assert learnability.ends_at_once(dones) is None
    assert learnability.constant_observation(observations) is None
    assert learnability.constant_reward(rewards, may_fail=False) is None


def test_actions_that_change_nothing_are_found() -> None:
    actions, changes, *_ = rollout("cartpole-balance", acts=False)
    assert learnability.idle_actions(actions, changes)
    assert learnability.idle_actions(actions, torch.zeros_like(changes))
    assert learnability.idle_actions(actions[:, :8], changes[:, :8]) is None  # Too few to tell.
    late = torch.cat((torch.zeros_like(actions[:9]), actions[:-9]))
    assert learnability.idle_actions(actions, late) is None


def test_what_never_changes_is_found() -> None:
    rewards = torch.full((STEPS, 4), 0.5)
    assert learnability.constant_reward(rewards, may_fail=False)
    assert learnability.constant_reward(rewards, may_fail=True) is None  # For staying alive.
    assert learnability.constant_reward(-rewards, may_fail=True)
    seen = torch.arange(3.0).expand(STEPS, 4, 3).clone()
    assert learnability.constant_observation(seen)
    seen[3, 2, 1] = 2.0
    assert learnability.constant_observation(seen) is None
    assert learnability.constant_columns(seen).tolist() == [True, False, True]


def test_episodes_that_end_in_each_step_are_found() -> None:
    assert learnability.ends_at_once(torch.ones(STEPS, 4, dtype=torch.bool))
    assert learnability.ends_at_once((torch.arange(STEPS) % 10 == 0).unsqueeze(1)) is None
