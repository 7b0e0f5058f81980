"""CUDA graphs on a GPU; see test_captured for what they rest on, which is tested without one."""

from typing import Any

import pytest
import torch

from mjfleet.config import from_dict
from mjfleet.loggers.iteration_metrics import IterationMetrics
from mjfleet.rl.runner import Runner

from ..env.test_env import BUNDLED, build_task


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cartpole-swingup", "go1-velocity-flat"])
def test_training_by_graphs_goes_on_like_training_by_calls(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    found, rows = BUNDLED[name], []
    agent = from_dict(found.task.agent, {"num_steps_per_env": 8, "max_iterations": 6})
    captures: tuple[Any, ...] = ("auto", None)
    for capture in captures:
        torch.manual_seed(1)
        env = build_task(name, "warp", "cuda:0", num_envs=32)
        metrics: list[IterationMetrics] = []
        runner = Runner(env, agent, "cuda:0", 1, found.load, capture=capture)
        runner.train(metrics.append, lambda: None)
        rows.append([(m.mean_reward, m.losses["value"], m.total_steps) for m in metrics])
    assert not caplog.records
    for graphed, called in zip(*rows, strict=True):
        assert graphed == pytest.approx(called, rel=0.05)


@pytest.mark.gpu
def test_a_failed_capture_leaves_stream_and_random_numbers_as_they_were() -> None:
    from mjfleet.rl.cuda_graphs import capture

    stream, values = torch.cuda.current_stream(), torch.zeros(4, device="cuda")
    state = torch.cuda.get_rng_state()
    with pytest.raises(RuntimeError):
        capture(lambda: values.add_(torch.rand_like(values)).sum().item())
    assert torch.cuda.current_stream() == stream
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert torch.rand(2, device="cuda").isfinite().all()
