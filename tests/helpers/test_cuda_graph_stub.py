"""The stand-in for CUDA graphs replays at the addresses of the capture, and refuses likewise."""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rsl_rl.modules import EmpiricalNormalization
from tensordict import TensorDict

from .cuda_graph_stub import CaptureRefusedError, CudaGraphStub
from .recorded_graph import StaleMemoryError

CAPTURE = CudaGraphStub().capture


def test_a_capture_does_nothing_and_a_replay_does_all() -> None:
    total, step = torch.zeros(2), torch.ones(2)

    def accumulate() -> None:
        total.add_(step * 2.0)

    graph = CAPTURE(accumulate)
    assert total.tolist() == [0, 0]
    graph.replay()
    step.fill_(3.0)
    graph.replay()
    assert total.tolist() == [8, 8]
    assert graph.replays == 2


@pytest.mark.parametrize("is_inference", [False, True])
def test_a_replay_gives_the_bits_of_calls(is_inference: bool) -> None:
    network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ELU(), torch.nn.Linear(8, 2))
    network.requires_grad_(False)
    inputs, outputs = TensorDict({"x": torch.randn(3, 4)}), torch.zeros(2, 3, 2)

    def evaluate() -> None:
        for step in range(2):
            outputs[step] = network(inputs["x"])
            torch.clamp(outputs[step], -1.0, 1.0, out=outputs[step])
            inputs["x"].mul_(0.5)[:, 0] = 1.0

    with torch.inference_mode(is_inference):
        graph = CAPTURE(evaluate)
        start = inputs["x"].clone()
        evaluate()
        expected = outputs.clone()
        inputs["x"].copy_(start)
        outputs.zero_()
    graph.replay()
    assert torch.equal(outputs, expected)


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


def test_a_replay_writes_to_the_tensors_of_the_capture() -> None:
    owner = SimpleNamespace(value=torch.zeros(1))
    first = owner.value
    graph = CAPTURE(lambda: owner.value.add_(1.0))
    owner.value = torch.zeros(1)
    graph.replay()
    assert (first.item(), owner.value.item()) == (1.0, 0.0)


def test_memory_that_was_freed_after_the_capture_is_noticed() -> None:
    owner = SimpleNamespace(read=torch.ones(1), result=torch.zeros(1))
    graph = CAPTURE(lambda: owner.result.copy_(owner.read))
    graph.replay()
    view = owner.read[:]  # Somebody still holds the memory.
    owner.read = torch.ones(1)
    graph.replay()
    del view
    with pytest.raises(StaleMemoryError, match=r"copy_.*\(1,\)"):
        graph.replay()


@pytest.mark.parametrize("keeps_freed_memory", [False, True])
def test_a_normalizer_of_rsl_rl_leaves_a_graph_with_stale_deviations(
    keeps_freed_memory: bool,
) -> None:
    torch.manual_seed(0)
    normalizer, inputs, outputs = EmpiricalNormalization(3), torch.randn(8, 3), torch.zeros(8, 3)

    def normalize() -> None:
        outputs.copy_(normalizer(inputs))

    with torch.inference_mode():
        graph = CudaGraphStub(keeps_freed_memory=keeps_freed_memory).capture(normalize)
        normalizer.train()
        normalizer.update(10.0 * inputs)
    if keeps_freed_memory:
        graph.replay()
        stale = outputs.clone()
        normalize()
        assert not torch.allclose(stale, outputs)
    else:
        with pytest.raises(StaleMemoryError, match="add"):
            graph.replay()


def test_memory_of_a_capture_is_undefined_until_the_first_replay() -> None:
    owner = SimpleNamespace(made=torch.zeros(2))

    def make() -> None:
        owner.made = torch.ones(2)

    graph = CAPTURE(make)
    assert owner.made.isnan().all()
    graph.replay()
    assert owner.made.tolist() == [1, 1]


def test_graphs_of_a_pool_overwrite_each_others_memory() -> None:
    stub, inputs = CudaGraphStub(), torch.ones(2)
    kept: list[torch.Tensor] = []
    first = stub.capture(lambda: inputs.add_(1.0).mul(2.0).sum())
    second = stub.capture(lambda: kept.append(inputs * 3.0), pool=first.pool())
    first.replay()
    second.replay()
    assert kept[0].tolist() == [6, 6]
    first.replay()
    assert kept[0].isnan().all()
    assert inputs.tolist() == [3, 3]


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


def on_host(value: Any) -> None:
    assert value is not None


X, MASK = torch.arange(6.0), torch.arange(6) > 2
REFUSED: dict[str, Callable[[], object]] = {
    "item": lambda: X.sum().item(),
    "bool": lambda: on_host(1 if X.sum() > 2 else 0),
    "float": lambda: float(X[0]),
    "tolist": X.tolist,
    "numpy": X.numpy,
    "asarray": lambda: np.asarray(X),
    "cpu": X.cpu,
    "equal": lambda: torch.equal(X, X),
    "allclose": lambda: torch.allclose(X, X),
    "nonzero": X.nonzero,
    "argwhere": lambda: torch.argwhere(X),
    "where of one argument": lambda: torch.where(MASK),
    "reading by a boolean mask": lambda: X[MASK],
    "writing by a boolean mask": lambda: X.clone().index_put_((MASK,), X[3:]),
    "masked_select": lambda: X.masked_select(MASK),
    "unique": X.unique,
    "repeat_interleave": lambda: X.repeat_interleave(MASK.long()),
    "a list as an index": lambda: X[[0, 1]],
    "a list": lambda: torch.tensor([1.0, 2.0]),
    "a number": lambda: torch.tensor(1.0),
    "from_numpy": lambda: torch.from_numpy(np.zeros(2)),
    "normal with tensors": lambda: torch.normal(X, X),
    "an unregistered generator": lambda: torch.rand(2, generator=torch.Generator()),
    "NumPy's random numbers": lambda: X * float(np.random.rand()),
    "Python's random numbers": lambda: X * random.random(),
}


@pytest.mark.parametrize("is_inference", [False, True])
@pytest.mark.parametrize("what", REFUSED)
def test_a_capture_refuses(what: str, is_inference: bool) -> None:
    with torch.inference_mode(is_inference):
        REFUSED[what]()
        with pytest.raises(CaptureRefusedError):
            CAPTURE(REFUSED[what])


def test_what_a_capture_allows_is_not_refused() -> None:
    values, order = torch.zeros(6), torch.arange(6).flip(0)

    def allowed() -> None:
        values[0] = 1.0
        values[order > 3] = 2.0  # masked_fill, which needs no number.
        values[order[:2]] = X[:2] * 2.0
        values.copy_(torch.where(values > 1.0, values, 0.5))
        values.add_(X[torch.randperm(6)].repeat_interleave(MASK.long() + 1, output_size=9)[:6])
        values.add_(torch.zeros(6).clamp(min=0.0)).to(torch.float64)

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

    with pytest.raises(CaptureRefusedError, match="invalidated"):
        CAPTURE(ask)


def test_a_failed_capture_leaves_values_and_random_numbers_as_they_were() -> None:
    value, state = torch.ones(2), torch.get_rng_state()

    def fail() -> None:
        value.add_(torch.rand(2))
        raise KeyError("broken")

    with pytest.raises(KeyError):
        CAPTURE(fail)
    assert value.tolist() == [1, 1]
    assert torch.equal(torch.get_rng_state(), state)


def test_numbers_of_python_are_those_of_the_capture() -> None:
    owner, value = SimpleNamespace(count=0), torch.zeros(1)

    def count() -> None:
        owner.count += 1
        value.fill_(float(owner.count))

    graph = CAPTURE(count)
    graph.replay()
    graph.replay()
    assert value.item() == 1.0
