"""Half of each batch of SAC is mirrored where the task says how."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from mjfleet.config import SACConfig, SymmetryConfig
from mjfleet.errors import UserError
from mjfleet.rl.learner import Setup
from mjfleet.rl.ranks.collectives import Collectives
from mjfleet.rl.sac.mirrored_half import MirroredHalf

from ...env.test_env import BUNDLED, build_task
from .test_sac import agent

SYMMETRY = SymmetryConfig(data_augmentation_func="env:mirror", use_data_augmentation=True)


def test_the_first_half_of_a_batch_is_the_image_of_what_it_was() -> None:
    found = BUNDLED["go1-velocity-flat"]
    env = build_task("go1-velocity-flat", "native", "cpu", num_envs=8)
    config = replace(agent(1), algorithm=SACConfig(symmetry_cfg=SYMMETRY))
    seen = {name: env.get_observations()[name] for name in ("actor", "critic")}
    half = MirroredHalf(Setup(env, config, "cpu", 1, found.load, Collectives()), seen)
    rows = {name: torch.randn_like(x) for name, x in seen.items()}
    batch, actions = {name: x.clone() for name, x in rows.items()}, torch.rand(8, env.num_actions)
    done = actions.clone()
    half.apply(batch, actions=done)
    first = TensorDict({name: x[:4] for name, x in rows.items()}, batch_size=4)
    images, mirrored = found.load("env:mirror")(env, obs=first, actions=actions[:4])
    for name, x in rows.items():
        assert torch.equal(batch[name], torch.cat((images[name][4:], x[4:])))
    assert torch.equal(done, torch.cat((mirrored[4:], actions[4:])))


def test_mirrored_actions_are_the_same_where_limits_differ_between_the_sides() -> None:
    found = BUNDLED["go1-velocity-flat"]
    env = build_task("go1-velocity-flat", "native", "cpu", num_envs=8)
    limit = torch.rand(env.num_actions) + 0.5
    env.action_limit = limit
    config = replace(agent(1), algorithm=SACConfig(symmetry_cfg=SYMMETRY))
    seen = {name: env.get_observations()[name] for name in ("actor", "critic")}
    half = MirroredHalf(Setup(env, config, "cpu", 1, found.load, Collectives()), seen)
    actions, shares = torch.rand(8, env.num_actions), torch.empty(8, env.num_actions)
    torch.div(actions, limit, out=shares)
    half.apply(actions=shares)
    _, mirrored = found.load("env:mirror")(env, obs=None, actions=actions[:4])
    torch.testing.assert_close(shares * limit, torch.cat((mirrored[4:], actions[4:])))


def test_a_task_that_ties_weights_has_mirrored_batches_with_sac() -> None:
    found = BUNDLED["go1-velocity-flat"]
    algorithm: Any = found.defaults("sac").agent.algorithm
    assert algorithm.symmetry_cfg == SYMMETRY
    plain: Any = found.defaults().agent.algorithm
    assert plain.symmetry_cfg.use_equivariant_networks


def test_what_sac_does_not_do_with_a_mirror_is_refused() -> None:
    with pytest.raises(UserError, match="sac mirrors samples"):
        SACConfig(symmetry_cfg=replace(SYMMETRY, use_mirror_loss=True))


@pytest.mark.parametrize("ranks", [1, 2])
def test_one_sample_of_a_worker_has_no_half(ranks: int) -> None:
    found = BUNDLED["go1-velocity-flat"]
    env = build_task("go1-velocity-flat", "native", "cpu", num_envs=8)
    config = SACConfig(symmetry_cfg=SYMMETRY, batch_size=2 * ranks - 1)
    collectives = Collectives()
    collectives.world_size = ranks
    setup = Setup(env, replace(agent(1), algorithm=config), "cpu", 1, found.load, collectives)
    with pytest.raises(UserError, match=f"it must be at least {2 * ranks}, two a worker"):
        MirroredHalf(setup, {"actor": env.get_observations()["actor"]})


def test_images_are_not_mirrored() -> None:
    found = BUNDLED["go1-velocity-flat"]
    env = build_task("go1-velocity-flat", "native", "cpu", num_envs=8)
    config = replace(agent(1), algorithm=SACConfig(symmetry_cfg=SYMMETRY))
    setup = Setup(env, config, "cpu", 1, found.load, Collectives())
    with pytest.raises(UserError, match="`camera` is an image"):
        MirroredHalf(setup, {"camera": torch.zeros(8, 1, 4, 4)})
