"""A network's forward pass as convolutions is the network's own."""

import pytest
import torch
from rsl_rl.modules import MLP

from mjfleet.rl.mlp import WORTHWHILE, forward, overwrite


@pytest.mark.parametrize("activation", ["elu", "selu", "crelu", "relu", "tanh", "gelu", "swish"])
@pytest.mark.parametrize("outputs", [1, (2, 3)], ids=["one output", "two by three"])
def test_convolutions_have_the_same_outputs_and_derivatives(
    activation: str, outputs: int | tuple[int, int]
) -> None:
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
    assert ("aten::mkldnn_convolution" in calls) == torch.backends.mkldnn.is_available()
