"""PPO's gradients in closed form are those of autograd."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rsl_rl.models import MLPModel
from tensordict import TensorDict

from mjfleet.config import PPOConfig
from mjfleet.rl.minibatches import Minibatch
from mjfleet.rl.ppo import cpu_backprop
from mjfleet.rl.ppo.cpu_backprop import CpuBackprop, CpuNetwork
from mjfleet.rl.ranks.gradients import FlatGradient

SAMPLES, ACTIONS, INPUTS, CLIP = 203, 3, 20, 0.2

CASES: dict[str, dict[str, Any]] = {
    "scalar": {},
    "log": {"distribution": {"std_type": "log", "init_std": 0.5}},
    "fixed std": {"distribution": {"learn_std": False}},
    "std at its limit": {"distribution": {"init_std": 0.5, "std_range": (0.9, 2.0)}},
    "log std at its limit": {"distribution": {"std_type": "log", "std_range": (1e-3, 0.9)}},
    "unclipped values": {"algorithm": {"use_clipped_value_loss": False}},
    "much entropy": {"algorithm": {"entropy_coef": 3.0, "value_loss_coef": 0.3}},
    "few inputs": {"inputs": 5},
    **{name: {"activation": name} for name in ("relu", "tanh")},
}


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


def build(
    activation: str = "elu",
    inputs: int = INPUTS,
    distribution: dict[str, Any] | None = None,
    algorithm: dict[str, Any] | None = None,
) -> tuple[MLPModel, MLPModel, PPOConfig]:
    torch.manual_seed(4)
    obs = TensorDict({"obs": torch.zeros(1, inputs)}, batch_size=[1])
    groups = {"actor": ["obs"], "critic": ["obs"]}
    network: dict[str, Any] = {"hidden_dims": [24, 16, 8], "activation": activation}
    gaussian = {"class_name": "GaussianDistribution", **(distribution or {})}
    actor = MLPModel(obs, groups, "actor", ACTIONS, **network, distribution_cfg=gaussian)
    critic = MLPModel(obs, groups, "critic", 1, **network)
    return actor, critic, PPOConfig(clip_param=CLIP, **(algorithm or {}))


def random_batch(actor: Any, critic: Any) -> Minibatch:
    """Samples on both sides of every limit: the networks have moved since the rollout."""
    with torch.no_grad():
        inputs = torch.randn(2, SAMPLES, actor.obs_dim)
        actor.distribution.update(actor.mlp(inputs[0]))
        actions, (means, stds) = actor.distribution.sample(), actor.distribution.params
        log_probs = actor.get_output_log_prob(actions)
        values = critic.mlp(inputs[1]) + 0.3 * torch.randn(SAMPLES, 1)
        returns = values + 0.3 * torch.randn(SAMPLES, 1)
        advantages = torch.randn(SAMPLES)
        for parameter in (*actor.parameters(), *critic.parameters()):
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.05)
    samples = torch.arange(SAMPLES)
    return Minibatch(
        *(samples, inputs[0], inputs[1], actions, values, returns, advantages, log_probs),
        (means, stds.clone()),
    )


def autograd(actor: Any, critic: Any, config: PPOConfig, batch: Minibatch) -> list[torch.Tensor]:
    """Losses as rsl_rl writes them, KL divergence, and gradients."""
    actor.distribution.update(actor.mlp(batch.actor_inputs))
    ratio = torch.exp(actor.get_output_log_prob(batch.actions) - batch.log_probs)
    clipped = ratio.clamp(1.0 - CLIP, 1.0 + CLIP)
    surrogate = torch.max(-batch.advantages * ratio, -batch.advantages * clipped).mean()
    values = critic.mlp(batch.critic_inputs)
    errors = (values - batch.returns).square()
    if config.use_clipped_value_loss:
        near = batch.values + (values - batch.values).clamp(-CLIP, CLIP)
        errors = torch.max(errors, (near - batch.returns).square())
    value, entropy = errors.mean(), actor.output_entropy.mean()
    loss = surrogate + config.value_loss_coef * value - config.entropy_coef * entropy
    parameters = [p for p in (*actor.parameters(), *critic.parameters()) if p.requires_grad]
    gradients = torch.autograd.grad(loss, parameters)
    kl = actor.get_kl_divergence(batch.distribution, actor.output_distribution_params).mean()
    return [*(g.flatten() for g in gradients), torch.stack((kl, value, surrogate, entropy))]


@pytest.mark.parametrize("threads", [1, 2, 6])
@pytest.mark.parametrize("case", CASES)
def test_gradients_and_losses_are_those_of_autograd(
    case: str, threads: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor, critic, config = build(**CASES[case])
    gradient = FlatGradient([*actor.parameters(), *critic.parameters()])
    monkeypatch.setattr(cpu_backprop, "BLOCK_ACTIVATIONS", 24 * 50)  # Several blocks.
    parts = {"actor": actor, "critic": critic, "gradient": gradient, "config": config}
    alg = SimpleNamespace(**parts, **vars(config))
    backprop = CpuBackprop(alg, threads)
    for _ in range(2):  # The second time with what the first one has left in the buffers.
        batch = random_batch(actor, critic)
        losses = backprop.compute_gradients(batch)
        found = torch.cat((gradient.flat, losses))
        expected = torch.cat(autograd(actor, critic, config, batch)).detach()
        tolerance = 1e-12 if dtype == torch.float64 else 1e-5
        error = (found - expected).norm() / expected.norm()
        assert error < tolerance
        check = partial(torch.testing.assert_close, rtol=100 * tolerance, atol=tolerance)
        check(found, expected)
        values = torch.empty(SAMPLES, 1)
        backprop.predict_values(batch.critic_inputs, values)
        check(values, critic.mlp(batch.critic_inputs).detach())


@pytest.mark.parametrize("activation", ["gelu", "selu"])
def test_activations_without_a_closed_form_are_left_to_autograd(activation: str) -> None:
    known, other = build(), build(activation=activation)
    assert CpuBackprop.supports(*known[:2])
    assert not CpuBackprop.supports(*other[:2])


@pytest.mark.parametrize(
    ("place", "layer"),
    [
        (3, torch.nn.Tanh()),
        (3, torch.nn.ELU(alpha=0.5)),
        (3, torch.nn.Linear(16, 16)),
        (2, torch.nn.Linear(24, 16, bias=False)),
    ],
)
def test_layers_that_a_class_of_ones_own_has_changed_are_left_to_autograd(
    place: int, layer: torch.nn.Module
) -> None:
    actor, critic, _ = build()
    critic.mlp[place] = layer
    assert not CpuBackprop.supports(actor, critic)
    del critic.mlp[1:]
    assert not CpuBackprop.supports(actor, critic)


def test_elu_is_that_of_torch_everywhere() -> None:
    steep = torch.linspace(-120.0, 120.0, 2**12)
    flat = torch.linspace(-1e-3, 1e-3, 2**12)
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan])
    x = torch.cat((steep, flat, special)).unsqueeze(1)
    layers = torch.nn.Linear(1, 1, bias=True), torch.nn.ELU(), torch.nn.Linear(1, 1)
    network = torch.nn.Sequential(*layers)
    for layer in (layers[0], layers[2]):
        torch.nn.init.ones_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    found = torch.empty_like(x)
    CpuNetwork(network).predict(x, found)
    torch.testing.assert_close(found, network(x).detach(), rtol=1e-6, atol=1e-6, equal_nan=True)
