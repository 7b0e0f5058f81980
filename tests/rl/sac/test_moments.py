"""SAC's networks normalise what they are given, actions included."""

from dataclasses import replace
from typing import Any

import torch

from mjfleet.rl.learner import Setup
from mjfleet.rl.ranks.collectives import Collectives
from mjfleet.rl.sac.sac import SAC

from ...env.test_env import BUNDLED, build_task
from .test_mirrored_half import SYMMETRY
from .test_sac import SMALL, agent

STEPS, ENVS = 8, 6


def make() -> tuple[SAC, Any]:
    found = BUNDLED["go1-velocity-flat"]
    env = build_task("go1-velocity-flat", "native", "cpu", num_envs=ENVS)
    config = replace(agent(1), algorithm=replace(SMALL, symmetry_cfg=SYMMETRY))
    return SAC(Setup(env, config, "cpu", 1, found.load, Collectives())), found.load("env:mirror")


def test_critics_are_given_actions_by_their_mean_and_deviation_and_those_of_their_images() -> None:
    alg, mirror = make()
    actions = 0.1 * torch.randn(STEPS, ENVS, alg.env.num_actions) + 0.05
    alg.replay.actions[:STEPS] = actions / alg.actor.limit
    for rows in alg.replay.observations.values():
        rows[:STEPS] = torch.randn(STEPS, *rows.shape[1:])
    alg.replay.next = alg.replay.count = STEPS
    alg.num_steps = STEPS
    alg.rewards._recent = torch.rand(STEPS, ENVS)
    alg._learn_moments()
    _, both = mirror(alg.env, obs=None, actions=actions.flatten(0, 1))
    shares = both / alg.actor.limit
    normalizer: Any = alg.critic.action_normalizer
    torch.testing.assert_close(normalizer.mean, shares.mean(dim=0), atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(normalizer.std, shares.std(dim=0, correction=0))
    seen = torch.randn(len(shares), alg.critic._get_latent_dim())
    given = list[torch.Tensor]()
    alg.critic.action_normalizer.register_forward_hook(lambda *parts: given.append(parts[2]))
    alg.critic.logits(seen, shares)
    torch.testing.assert_close(given[0].std(dim=0), torch.ones(12), atol=0.2, rtol=0.0)
    for own, other in zip(alg.critic.buffers(), alg.target.buffers(), strict=True):
        assert torch.equal(own, other)


def test_a_robot_is_left_in_its_home_pose_at_first() -> None:
    alg, _ = make()
    first = alg.actor(alg.env.get_observations())
    assert 0 < first.abs().max() < 0.02 * alg.actor.limit.max()
