"""The stand-in for CUDA graphs replays at the addresses of the capture, and refuses likewise."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from .cuda_graph_stub import CaptureRefusedError, CudaGraphStub

CAPTURE = CudaGraphStub().capture


def test_a_capture_does_nothing_and_a_replay_does_all_with_numbers_of_the_capture() -> None:
    owner, factor = SimpleNamespace(total=torch.zeros(2), count=0), torch.ones(2)

    def accumulate() -> None:
        owner.count += 1
        owner.total.add_(factor * 2.0)[0] += owner.count

    total, graph = owner.total, CAPTURE(accumulate)
    assert total.tolist() == [0, 0]
    graph.replay()
    factor.fill_(3.0)
    owner.total = torch.zeros(2)
    graph.replay()
    assert (total.tolist(), owner.total.tolist()) == ([10, 8], [0, 0])
    assert graph.replays == 2


def test_gradients_and_a_fused_optimiser_are_replayed() -> None:
    results = []
    for is_replayed in (False, True):
        torch.manual_seed(0)
        network, inputs = torch.nn.Linear(4, 1), torch.randn(3, 4)
        rate = torch.tensor(1e-2)
        optimizer = torch.optim.Adam(network.parameters(), lr=rate, fused=True)

        def update(
            network: Any = network, inputs: Any = inputs, optimizer: Any = optimizer
        ) -> None:
            optimizer.zero_grad(set_to_none=False)
            network(inputs).square().mean().backward()
            optimizer.step()

        update()
        step = CAPTURE(update).replay if is_replayed else update
        for _ in range(4):
            rate.mul_(0.5)
            step()
        results.append([p.detach().clone() for p in network.parameters()])
    assert all(map(torch.equal, *results))


def test_random_numbers_advance_between_replays_as_between_calls() -> None:
    found = torch.zeros(2, 3)

    def draw() -> None:
        found[0] = torch.rand(3)
        found[1].normal_()

    graph = CAPTURE(draw)
    rows = []
    for step in (draw, graph.replay):
        torch.manual_seed(5)
        drawn = []
        for _ in range(3):
            step()
            drawn.append(found.clone())
        rows.append(torch.stack(drawn))
    assert torch.equal(*rows)
    assert not torch.equal(rows[0][0], rows[0][1])


X = torch.arange(6.0)
REFUSED: dict[str, Callable[[], object]] = {
    "item": lambda: X.sum().item(),
    "bool": lambda: 1 if X.sum() > 2 else 0,
    "nonzero": X.nonzero,
    "a boolean mask": lambda: X[X > 2],
    "masked_select": lambda: X.masked_select(X > 2),
    "normal with tensors": lambda: torch.normal(X, X),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_capture_refuses_what_asks_for_a_value(what: str) -> None:
    with pytest.raises(CaptureRefusedError):
        CAPTURE(REFUSED[what])


def test_a_failed_capture_leaves_values_and_random_numbers_as_they_were() -> None:
    value, state = torch.ones(2), torch.get_rng_state()

    def fail() -> None:
        value.add_(torch.rand(2))
        raise KeyError("broken")

    with pytest.raises(KeyError):
        CAPTURE(fail)
    assert value.tolist() == [1, 1]
    assert torch.equal(torch.get_rng_state(), state)
