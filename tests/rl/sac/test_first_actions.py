"""What SAC's networks make of actions before anything is learned."""

from dataclasses import replace

import torch

from mjfleet.rl.learner import Setup
from mjfleet.rl.ranks.collectives import Collectives
from mjfleet.rl.sac.sac import SAC

from ...env.test_env import BUNDLED, build_task
from .test_sac import SMALL, agent


def make(target_std: float = 0.15, task: str = "go1-velocity-flat") -> SAC:
    env = build_task(task, "native", "cpu", num_envs=4)
    config = replace(agent(1), algorithm=replace(SMALL, target_std=target_std))
    load = BUNDLED[task].load
    return SAC(Setup(env, config, "cpu", 1, load, Collectives()))


def test_a_robot_is_left_in_its_home_pose_at_first() -> None:
    alg = make()
    first = alg.actor(alg.env.get_observations())
    assert 0 < first.abs().max() < 0.02 * alg.actor.limit.max()


def test_torques_are_tried_at_random_at_first() -> None:
    alg = make(task="walker-walk")
    first = alg.actor(alg.env.get_observations())
    assert first.abs().mean() > 0.1 * alg.actor.limit.max()


def test_critics_are_given_a_robots_actions_in_units_of_the_noise_that_is_aimed_at() -> None:
    fine, coarse = make(0.1), make(0.2)
    own = coarse.critic.action_unit.clone()
    coarse.critic.load_state_dict(fine.critic.state_dict())
    latent = torch.randn(5, fine.critic._get_latent_dim())
    actions = torch.empty(5, fine.env.num_actions).uniform_(-0.5, 0.5)
    found = fine.critic.logits(latent, actions)
    # A fork with another `target-std` goes on with what its critics know.
    torch.testing.assert_close(coarse.critic.logits(latent, actions), found)
    coarse.critic.action_unit.copy_(own)
    torch.testing.assert_close(coarse.critic.logits(latent, 2 * actions), found)
    assert not torch.allclose(coarse.critic.logits(latent, actions), found)


def test_critics_are_given_torques_as_shares_of_their_limits() -> None:
    critic = make(task="walker-walk").critic
    assert critic.action_unit == 1.0
    assert make().critic.action_unit == torch.tensor(0.15)
