"""CUDA graphs on a GPU; test_graph_capture tests without one what they rest on."""

from typing import Any

import pytest
import torch

from mjfleet.config import from_dict
from mjfleet.loggers.logger import Row
from mjfleet.rl.device.graph_capture import capture
from mjfleet.rl.runner import Runner

from ...env.test_env import BUNDLED, build_task


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "tolerance"),
    # Contacts come in an order that differs from run to run, and two runs drift apart.
    [("cartpole-swingup", 0.05), ("go1-velocity-flat", 0.5)],
)
def test_training_by_graphs_goes_on_like_training_by_calls(
    name: str, tolerance: float, caplog: pytest.LogCaptureFixture
) -> None:
    found, rows = BUNDLED[name], []
    agent = from_dict(found.task.agent, {"num_steps_per_env": 8, "max_iterations": 6})
    captures: tuple[Any, ...] = ("auto", None)
    for how in captures:
        torch.manual_seed(1)
        env = build_task(name, "warp", "cuda:0", num_envs=32)
        found_rows: list[Row] = []
        runner = Runner(env, agent, "cuda:0", 1, found.load, capture=how)
        runner.train(found_rows.append, lambda: None)
        names = "mean_reward", "loss/value", "total_steps"
        rows.append([[row[name] for name in names] for row in found_rows])
    assert not caplog.records
    for graphed, called in zip(*rows, strict=True):
        assert graphed == pytest.approx(called, rel=tolerance)


@pytest.mark.gpu
def test_a_failed_capture_leaves_all_as_it_was_and_another_one_succeeds() -> None:
    stream, values = torch.cuda.current_stream(), torch.zeros(4, device="cuda")

    def draw() -> None:
        values.copy_(torch.rand_like(values))

    before = capture(draw)
    torch.manual_seed(1)
    state = torch.cuda.get_rng_state()
    with pytest.raises(RuntimeError):
        capture(lambda: (draw(), values.sum().item()))
    assert torch.cuda.current_stream() == stream
    assert torch.equal(torch.cuda.get_rng_state(), state)
    torch.cuda.empty_cache()  # Refused as long as the allocator records.
    after = capture(draw)
    drawn = []
    for do in (draw, before.replay, after.replay):
        torch.cuda.set_rng_state(state)
        do()
        drawn.append(values.tolist())
    assert drawn[0] == drawn[1] == drawn[2]
