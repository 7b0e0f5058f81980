"""Training by captured updates is training by calls, on a stand-in for CUDA graphs."""

import gc
import itertools
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mjfleet.config import from_dict
from mjfleet.loggers.logger import Row
from mjfleet.rl.checkpoints.contents import Checkpointer
from mjfleet.rl.device.graph_capture import Captured
from mjfleet.rl.runner import Runner

from ...env.test_env import BUNDLED, build_task
from ...helpers.cuda_graph_stub import CudaGraphStub, refuse

TASKS = ["cartpole-swingup", pytest.param("go1-velocity-flat", marks=pytest.mark.slow)]
SWINGUP = BUNDLED["cartpole-swingup"]
NUM_ENVS, STEPS, ITERATIONS = 8, 6, 6
Between = Callable[[Runner, int], object]


def make_runner(capture: Any, found: Any = SWINGUP) -> Runner:
    """Build a runner whose episodes last ten steps."""
    torch.manual_seed(1)
    env = build_task(found.name, "native", "cpu", NUM_ENVS)
    env.max_episode_length = 10
    algorithm = {"backprop": "autograd"}
    values = {"num_steps_per_env": STEPS, "max_iterations": ITERATIONS, "algorithm": algorithm}
    agent = from_dict(found.task.agent, values)
    return Runner(env, agent, "cpu", 1, found.load, capture=capture)


def nothing(runner: Runner, iteration: int) -> None:
    pass


def learned(runner: Runner, between: Between = nothing) -> Any:
    """Train; return what was measured and learned."""
    rows: list[Any] = []

    def note(row: Row) -> None:
        rows.append({name: row[name] for name in row if not name.endswith(("second", "seconds"))})
        between(runner, runner.current_learning_iteration)

    runner.train(note, lambda: None)
    networks = runner.alg.actor, runner.alg.critic
    return repr(rows), [v.tolist() for n in networks for v in n.state_dict().values()]


def assert_same(
    caplog: pytest.LogCaptureFixture,
    found: Any = SWINGUP,
    between: Between = nothing,
    graphs: int = 2,
) -> None:
    """Assert that learning by so many graphs is learning by calls."""
    stub = CudaGraphStub()
    by_graphs = learned(make_runner(stub.capture, found), between)
    assert not caplog.records, caplog.text
    assert [graph.replays > 1 for graph in stub.graphs] == [True] * graphs
    assert learned(make_runner(refuse, found), between) == by_graphs


@pytest.mark.parametrize("name", TASKS)
def test_bundled_tasks(name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert_same(caplog, BUNDLED[name])


@pytest.mark.slow
def test_updates_in_mixed_precision(caplog: pytest.LogCaptureFixture) -> None:
    agent = from_dict(SWINGUP.task.agent, {"algorithm": {"use_mixed_precision": True}})
    found = replace(SWINGUP, task=replace(SWINGUP.task, agent=agent))
    assert_same(caplog, found)


@pytest.mark.slow
def test_a_number_that_is_changed_in_the_algorithm_is_captured_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def between(runner: Runner, iteration: int) -> None:
        if iteration == 3:
            runner.alg.entropy_coef = 0.5

    assert_same(caplog, between=between, graphs=4)  # Two before the change, and two after it.


@pytest.mark.parametrize("fault", ["late", "host", "other"])
def test_what_is_captured_wrongly_is_called_and_leaves_nothing(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A capture fails late, draws random numbers on the host, or its graph writes other values."""
    total, calls = torch.zeros(4), []

    def add() -> None:
        calls.append(1)
        total.add_(torch.rand(4))

    def capture(function: Callable[[], object]) -> Any:
        function()
        if fault == "late":
            raise RuntimeError("the last launch failed")
        if fault == "host":
            random.random()
        torch.set_rng_state(host)
        return SimpleNamespace(replay=lambda: total.add_(100.0))

    torch.manual_seed(1)
    expected = list(itertools.accumulate(torch.rand(4) for _ in range(3)))
    torch.manual_seed(1)
    captured = Captured("adding", add, lambda: [total], capture)
    for step in range(3):
        host = torch.get_rng_state()
        captured()
        assert torch.equal(total, expected[step])
    assert len(calls) == 4, "the capture is tried once"
    (record,) = caplog.records
    texts = {"late": "the last launch", "host": "drawn on the host", "other": "100% of values"}
    assert record.message.startswith("adding runs without a CUDA graph")
    assert texts[fault] in record.message


def test_a_checkpoint_is_loaded_between_replays(caplog: pytest.LogCaptureFixture) -> None:
    def between(runner: Runner, iteration: int) -> None:
        if iteration == 1:
            saved.clear()
            saved.update(runner.alg.save())
        elif iteration == 4:
            runner.alg.restore(saved, {"actor", "critic", "optimizer"})

    saved: dict[str, Any] = {}
    assert_same(caplog, between=between, graphs=4)


def test_no_gradient_of_another_stream_is_alive_when_a_capture_begins() -> None:
    """What autograd has recorded is bound to the stream of then, which CUDA refuses to capture."""
    stub, alive = CudaGraphStub(), []

    def recorded() -> list[torch.Tensor]:
        tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
        return [tensor for tensor in tensors if tensor.grad_fn is not None]

    def capture(*arguments: Any, **keywords: Any) -> Any:
        alive.append([tensor.shape for tensor in recorded() if id(tensor) not in others])
        return stub.capture(*arguments, **keywords)

    gc.collect()
    kept = recorded()  # Libraries that other tests have used keep their newest losses.
    others = {*map(id, kept)}
    learned(make_runner(capture))
    assert alive == [[], []]


@pytest.mark.slow
def test_a_resumed_run_is_captured_and_ends_as_one_that_never_stopped(tmp_path: Path) -> None:
    found, ends = BUNDLED["go1-velocity-flat"], []

    def train(folder: Path, *, by_graphs: bool, until: int, resume: bool = False) -> None:
        stub = CudaGraphStub()
        runner = make_runner(stub.capture if by_graphs else refuse, found)
        checkpointer = Checkpointer(runner, found.name, folder, keep=None)
        if resume:
            assert checkpointer.resume(folder / "model_3.pt") == []

        def stop() -> int | None:
            return signal.SIGTERM if runner.current_learning_iteration == until - 1 else None

        runner.train(lambda metrics: None, stop, checkpointer.save)
        assert not by_graphs or min(graph.replays for graph in stub.graphs) > 1

    for name, is_stopped in (("whole", False), ("parts", True)):
        folder = tmp_path / name
        folder.mkdir()
        if is_stopped:
            train(folder, by_graphs=True, until=3)
        train(folder, by_graphs=is_stopped, until=ITERATIONS, resume=is_stopped)
        ends.append(torch.load(folder / f"model_{ITERATIONS}.pt", weights_only=True))
    for part in ("actor_state_dict", "critic_state_dict"):
        whole, parts = (end[part] for end in ends)
        assert all(torch.equal(whole[name], value) for name, value in parts.items())
    whole, parts = (end["mjfleet"]["ranks"][0]["sim"] for end in ends)
    assert all(torch.equal(whole[name], value) for name, value in parts.items())
