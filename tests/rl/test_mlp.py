"""A network's quick forward pass is the network's own."""

import math
from functools import partial

import pytest
import torch
from rsl_rl.modules import MLP

from mjfleet.rl.mlp import WORTHWHILE, forward, overwrite


@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
@pytest.mark.parametrize("activation", ["elu", "selu", "crelu", "relu", "tanh", "gelu", "swish"])
@pytest.mark.parametrize("outputs", [1, (2, 3)], ids=["one output", "two by three"])
def test_networks_have_the_same_outputs_and_derivatives(
    activation: str,
    outputs: int | tuple[int, int],
    capability: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    torch.manual_seed(1)
    network = MLP(5, outputs, [64, 32], activation)
    rows = torch.randn(WORTHWHILE // 64, 5)
    wanted = network(rows)
    weights = torch.randn_like(wanted)
    wanted_gradients = torch.autograd.grad((wanted * weights).sum(), list(network.parameters()))
    overwrite(network)
    found = forward(network, rows)
    gradients = torch.autograd.grad((found * weights).sum(), list(network.parameters()))
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(gradients, wanted_gradients, rtol=1e-4, atol=1e-3)
    with torch.profiler.profile() as profile:
        forward(network, rows)
    calls = {event.key for event in profile.key_averages()}
    convolves = capability == "AVX512" and torch.backends.mkldnn.is_available()
    assert ("aten::mkldnn_convolution" in calls) == convolves
    assert ("aten::exp2_" in calls) == (activation == "elu")


def test_elu_is_that_of_torch_everywhere() -> None:
    steep = torch.linspace(-120.0, 120.0, 2**15)
    flat = torch.linspace(-1e-3, 1e-3, 2**15)
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan])
    x = torch.cat((steep, flat, special)).unsqueeze(1)
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(layer.weight)
    network = torch.nn.Sequential(layer, torch.nn.ELU())
    pairs = []
    for call in (network, partial(forward, network)):
        inputs = x.clone().requires_grad_()
        outputs = call(inputs)
        outputs.sum().backward()
        pairs.append((outputs.detach(), inputs.grad))
    torch.testing.assert_close(*pairs, rtol=1e-6, atol=1e-6, equal_nan=True)
