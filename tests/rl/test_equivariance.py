"""Networks whose weights are tied commute with a mirror, and learn as from mirrored samples."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from mjfleet.config import AgentConfig, SymmetryConfig
from mjfleet.errors import UserError
from mjfleet.rl.equivariance import Mirror
from mjfleet.rl.ppo import PPO

from .ppo.test_ppo import agent, learn, observations
from .test_ranks import weights

SIGNS = {"actor": [1, -1, 1, 1, -1, 1, 1], "critic": [1, -1, 1, 1], "extra": [-1, 1]}
SWAPPED = {"actor": [2, 1, 0, 3, 4, 6, 5], "critic": [0, 1, 3, 2], "extra": [0, 1]}


def mirror(
    env: Any, obs: TensorDict | None, actions: torch.Tensor | None
) -> tuple[TensorDict | None, torch.Tensor | None]:
    """Samples, followed by their images."""
    if obs is not None:
        images = {k: x[:, SWAPPED[k]] * torch.tensor(SIGNS[k]) for k, x in obs.items()}
        obs = TensorDict.cat((obs, TensorDict(images, batch_size=obs.batch_size)))
    if actions is not None:
        image = actions[:, [1, 0, 2]] * torch.tensor([1, 1, -1])
        actions = torch.cat((actions, image))
    return obs, actions


def scale(env: Any, obs: Any, actions: torch.Tensor) -> Any:
    """No permutation."""
    return mirror(env, obs, None)[0], torch.cat((actions, 2 * actions))


def tied(config: AgentConfig, updates: int = 0, function: Any = mirror) -> Any:
    symmetry = SymmetryConfig(data_augmentation_func="a:b", use_equivariant_networks=True)
    config = replace(config, algorithm=replace(config.algorithm, symmetry_cfg=symmetry))
    return learn(PPO, config, updates, perturbs=False, load=lambda *_: function)[0]


@pytest.mark.parametrize(
    "how",
    [
        {"algorithm": {"backprop": "auto"}},
        {"algorithm": {"backprop": "autograd"}},
        {"distribution": {"class_name": "HeteroscedasticGaussianDistribution"}},
    ],
)
def test_mirrored_observations_lead_to_mirrored_actions_and_the_same_value(how: Any) -> None:
    alg = tied(agent(normalised=True, **how), updates=5)
    untrained = tied(agent(normalised=True))
    assert not torch.equal(alg.actor.mlp[0].weight, untrained.actor.mlp[0].weight)
    seen = observations()
    both, _ = mirror(None, seen, None)
    actions = alg.actor(both)
    torch.testing.assert_close(actions, mirror(None, None, actions[: len(seen)])[1])
    assert (actions[: len(seen)] - actions[len(seen) :]).abs().max() > 0.01
    own, image = alg.critic(both).split(len(seen))
    torch.testing.assert_close(own, image)
    alg.actor(both, stochastic_output=True)
    own, image = alg.actor.output_std.split(len(seen))
    torch.testing.assert_close(own[:, [1, 0, 2]], image)


def test_an_update_is_that_of_rsl_rl_from_samples_and_their_images() -> None:
    config = agent(algorithm={"schedule": "fixed", "learning_rate": 0.1, "optimizer": "sgd"})
    symmetry = SymmetryConfig(data_augmentation_func="task:mirror", use_data_augmentation=True)
    augmented = replace(config, algorithm=replace(config.algorithm, symmetry_cfg=symmetry))
    theirs = learn(None, augmented, 0, load=lambda name: mirror)[0]
    for name, network in {"actor": theirs.actor, "critic": theirs.critic}.items():
        network.load_state_dict(getattr(tied(config), name).state_dict())
    learn(None, augmented, 1, theirs, perturbs=False)
    ours = tied(config, updates=1)
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=1e-5, atol=1e-5)
    plain = learn(PPO, config, 0)[0]
    for name in ("actor", "critic"):
        getattr(plain, name).load_state_dict(getattr(tied(config), name).state_dict())
    learn(PPO, config, 1, plain, perturbs=False)
    assert (plain.actor.mlp[0].weight - ours.actor.mlp[0].weight).abs().max() > 1e-4


def test_a_mirror_loss_penalises_by_default() -> None:
    usual = SymmetryConfig(data_augmentation_func="task:mirror", use_mirror_loss=True)
    config, learned = agent(), []
    for symmetry in (usual, replace(usual, mirror_loss_coeff=0.0)):
        config = replace(config, algorithm=replace(config.algorithm, symmetry_cfg=symmetry))
        learned.append(weights(learn(None, config, 1, load=lambda name: mirror)[0]))
    assert not torch.equal(learned[0]["actor.mlp.0.weight"], learned[1]["actor.mlp.0.weight"])


def test_moments_are_those_of_samples_and_their_images() -> None:
    samples = observations()["actor"]
    known = Mirror(torch.tensor(SWAPPED["actor"]), torch.tensor(SIGNS["actor"]))
    both = torch.cat((samples, samples[:, known.source] * known.sign))
    moments = [
        torch.var_mean(x, dim=0, unbiased=False, keepdim=True)[::-1] for x in (samples, both)
    ]
    torch.testing.assert_close(known.add_image(*moments[0]), moments[1])


def test_a_function_that_is_no_mirror_is_refused() -> None:
    with pytest.raises(UserError, match="must be a mirror: it swaps the numbers of `actions`"):
        tied(agent(), function=scale)


def test_loaded_weights_that_are_not_tied_are_named() -> None:
    config, networks = agent(), {"actor", "critic"}
    alg = tied(config)
    alg.restore(tied(config, updates=3).save(), networks)
    with pytest.raises(UserError, match="by another mirror"):
        alg.restore(learn(PPO, config, 0)[0].save(), networks)
