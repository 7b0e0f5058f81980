"""The stand-in for CUDA graphs replays at the addresses of the capture, and refuses likewise."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from .cuda_graph_stub import CaptureRefusedError, CudaGraphStub

CAPTURE = CudaGraphStub().capture
X, MASK = torch.arange(6.0), torch.arange(6) > 2
REFUSED: dict[str, Callable[[], object]] = {
    "item": lambda: X.sum().item(),
    "bool": lambda: 1 if X.sum() > 2 else 0,
    "float": lambda: float(X[0]),
    "equal": lambda: torch.equal(X, X),
    "nonzero": X.nonzero,
    "where of one argument": lambda: torch.where(MASK),
    "reading by a boolean mask": lambda: X[MASK],
    "writing by a boolean mask": lambda: X.clone().index_put_((MASK,), X[3:]),
    "masked_select": lambda: X.masked_select(MASK),
    "unique": X.unique,
    "unique rows": lambda: X.unique(dim=0),
    "unique_consecutive": X.unique_consecutive,
    "bincount": lambda: X.long().bincount(),
    "repeat_interleave": lambda: X.repeat_interleave(MASK.long()),
    "normal with tensors": lambda: torch.normal(X, X),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_capture_refuses_what_asks_for_a_value(what: str) -> None:
    REFUSED[what]()
    with pytest.raises(CaptureRefusedError):
        CAPTURE(REFUSED[what])


def test_what_a_capture_allows_is_not_refused() -> None:
    values, order = torch.zeros(6), torch.arange(6).flip(0)

    def allowed() -> None:
        values[0] = 1.0
        values[order[:2]] = X[:2] * 2.0
        values.copy_(torch.where(values > 1.0, values, 0.5))
        values.add_(X[torch.randperm(6)])
        values.masked_fill_(MASK, 3.0).to(torch.float64)

    torch.manual_seed(1)
    graph = CAPTURE(allowed)
    allowed()
    expected = values.clone()
    values.zero_()
    torch.manual_seed(1)
    graph.replay()
    assert torch.equal(values, expected)


def test_a_refusal_that_the_function_catches_still_ends_the_capture() -> None:
    def ask() -> None:
        try:
            X.sum().item()
        except RuntimeError:
            X.sum()

    with pytest.raises(CaptureRefusedError):
        CAPTURE(ask)


def test_a_capture_does_nothing_and_a_replay_does_all_at_the_same_addresses() -> None:
    owner, step = SimpleNamespace(total=torch.zeros(2), count=0), torch.ones(2)
    first = owner.total

    def accumulate() -> None:
        owner.count += 1
        owner.total.add_(step[X[:2].long()] * 2.0).add_(float(owner.count))

    graph = CAPTURE(accumulate)
    assert first.tolist() == [0, 0]
    owner.total = torch.zeros(2)
    graph.replay()
    step.fill_(3.0)
    graph.replay()
    assert (first.tolist(), owner.total.tolist()) == ([10, 10], [0, 0])
    assert graph.replays == 2


def test_random_numbers_advance_between_replays_as_between_calls() -> None:
    found = torch.zeros(2, 3)

    def draw() -> None:
        found[0] = torch.rand(3)
        found[1].normal_()

    graph, rows = CAPTURE(draw), []
    for step in (draw, graph.replay):
        torch.manual_seed(5)
        for _ in range(3):
            step()
            rows.append(found.clone())
    assert all(map(torch.equal, rows[:3], rows[3:]))
    assert not torch.equal(rows[0], rows[1])


def test_a_failed_capture_leaves_values_and_random_numbers_as_they_were() -> None:
    value, state = torch.ones(2), torch.get_rng_state()

    def fail() -> None:
        value.add_(torch.rand(2))
        raise KeyError("broken")

    with pytest.raises(KeyError):
        CAPTURE(fail)
    assert value.tolist() == [1, 1]
    assert torch.equal(torch.get_rng_state(), state)
