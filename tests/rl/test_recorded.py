"""What is recorded once does the same again, to the bit, for whatever is in its tensors by then."""

import copy
import logging

import pytest
import torch
from torch import nn

from mjfleet.rl.recorded import Recorded

SIZES = (5, 5, 7, 5, 7, 5, 5)
"""Of inputs: each new size is recorded, and then repeated."""


class Step:
    """Adds the gradients of a loss, and the loss to a sum."""

    def __init__(self, *layers: nn.Module) -> None:
        torch.manual_seed(3)
        first = nn.Linear(3, 8), nn.ELU(inplace=True), nn.Linear(8, 8), nn.Tanh()
        self.network = nn.Sequential(*first, *copy.deepcopy(layers), nn.LazyLinear(2))
        self.network(torch.zeros(1, 3))
        self.total = torch.zeros(())
        self.calls = 0
        for parameter in self.network.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def __call__(self, inputs: tuple[torch.Tensor, ...], share: float) -> None:
        self.calls += 1
        seen, wanted = inputs
        errors = (self.network(seen) - wanted).exp()
        worst, place = errors.max(dim=1)
        loss = share * (worst.mean() + place.sum() + errors.std(dim=0).sum())
        loss.backward()
        with torch.no_grad():
            self.total.add_(loss)

    def results(self) -> list[torch.Tensor]:
        gradients = [parameter.grad for parameter in self.network.parameters()]
        return [self.total.clone(), *(g.clone() for g in gradients if g is not None)]


CONVOLUTION = nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 3, 2), nn.Flatten()


@pytest.mark.parametrize("layers", [(), CONVOLUTION], ids=["by TorchScript", "by Python"])
def test_a_repetition_is_a_call_but_for_its_python(
    layers: tuple[nn.Module, ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    called, recorded = Step(*layers), Step(*layers)
    repeated = Recorded(recorded)
    for size in SIZES:
        inputs = torch.randn(size, 3), torch.randn(size, 2)
        called(inputs, 1 / size)
        repeated(inputs, 1 / size)
        for mine, other in zip(recorded.results(), called.results(), strict=True):
            assert torch.equal(mine, other)
        with torch.no_grad():  # As an optimiser does.
            for step in (called, recorded):
                for parameter in step.network.parameters():
                    assert parameter.grad is not None
                    parameter.sub_(parameter.grad, alpha=0.1)
    assert called.calls == len(SIZES)
    assert recorded.calls == len(set(SIZES))
    assert ("by Python" in caplog.text) == bool(layers)


def test_what_depends_on_a_value_is_called_each_time_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    total = torch.zeros(())

    def add(inputs: tuple[torch.Tensor, ...], sign: float) -> None:
        (value,) = inputs
        if value.item() > 0.0:
            total.add_(value, alpha=sign)

    repeated = Recorded(add)
    with caplog.at_level(logging.WARNING):
        for value in (2.0, -1.0, 3.0):
            repeated((torch.tensor(value),), 1.0)
    assert total == 5.0
    assert len(caplog.records) == 1
    assert "asks for a tensor's value" in caplog.text
