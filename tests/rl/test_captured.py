"""Training by captured rollouts and updates is training by calls, on a stand-in for CUDA graphs."""

from typing import Any

import pytest
import torch

from mjfleet.config import from_dict
from mjfleet.env import Env
from mjfleet.loggers.iteration_metrics import IterationMetrics
from mjfleet.rl.runner import Runner

from ..env.test_env import BUNDLED, ENGINES, build_task
from ..helpers.cuda_graph_stub import CudaGraphStub

STEPS, ITERATIONS = 6, 6
TASKS = ("cartpole-swingup", "go1-velocity-flat", "go1-velocity-rough")


def make_runner(env: Env[Any], name: str, capture: Any, **agent: Any) -> Runner:
    torch.manual_seed(1)
    found = BUNDLED[name]
    values = {"num_steps_per_env": STEPS, "max_iterations": ITERATIONS, **agent}
    values["algorithm"] = {"backprop": "autograd", **values.get("algorithm", {})}
    return Runner(env, from_dict(found.task.agent, values), "cpu", 1, found.load, capture=capture)


def refuse(*arguments: Any, **keywords: Any) -> Any:
    raise RuntimeError("nothing is captured here")


def train(name: str, engine: str, device: str, is_captured: bool) -> tuple[Any, Any, CudaGraphStub]:
    env = build_task(name, engine, device, num_envs=8)
    stub = CudaGraphStub(env.sim)
    runner = make_runner(env, name, stub.capture if is_captured else refuse)
    rows: list[Any] = []

    def note(metrics: IterationMetrics) -> None:
        rows.append((metrics.mean_reward, metrics.losses, metrics.total_steps, metrics.terms))

    runner.train(note, lambda: None)
    networks = [*runner.alg.actor.state_dict().values(), *runner.alg.critic.state_dict().values()]
    return rows, networks, stub


@pytest.mark.parametrize(("engine", "device"), ENGINES)
@pytest.mark.parametrize("name", TASKS)
def test_rollouts_and_updates_by_graphs_are_those_by_calls(
    name: str, engine: str, device: str, caplog: pytest.LogCaptureFixture
) -> None:
    graphed, networks, stub = train(name, engine, device, is_captured=True)
    assert not caplog.records
    assert {graph.replays > 3 for graph in stub.graphs} == {True}
    called, others, _ = train(name, engine, device, is_captured=False)
    assert len(caplog.records) == 2
    assert graphed == called
    assert all(map(torch.equal, networks, others))
