"""CUDA graphs of rollouts and updates; what they rest on is tested without a GPU."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from mjfleet.config import from_dict
from mjfleet.loggers.iteration_metrics import IterationMetrics
from mjfleet.rl import cuda_graphs, ppo
from mjfleet.rl.cuda_graphs import CaptureError, GraphedRollout, Pinned
from mjfleet.rl.runner import Runner

from ..env.test_env import BUNDLED, build_task

FOUND = BUNDLED["cartpole-swingup"]


def make_runner(device: str = "cpu", engine: str = "native") -> Runner:
    torch.manual_seed(1)
    env = build_task("cartpole-swingup", engine, device, num_envs=32)
    agent = from_dict(FOUND.task.agent, {"num_steps_per_env": 8, "max_iterations": 6})
    return Runner(env, agent, device, 1, FOUND.load)


def test_pinned_attributes_keep_their_tensors_and_take_the_new_values() -> None:
    a, b = torch.tensor([1.0]), torch.tensor([2.0])
    groups, pair = TensorDict({"x": torch.zeros(1)}), [torch.zeros(1), torch.zeros(1)]
    owner = SimpleNamespace(a=a, b=b, groups=groups, pair=pair, untouched="text", count=0)
    pinned = Pinned(owner, counters=("count",))
    owner.a, owner.b = owner.b, owner.a  # Each is now what the other was.
    owner.groups = TensorDict({"x": torch.full((1,), 3.0)})
    owner.pair = (pair[0], torch.full((1,), 4.0))
    owner.count += 1
    pinned.settle()
    assert owner.a is a
    assert owner.b is b
    assert (a.item(), b.item()) == (2.0, 1.0)
    assert owner.groups is groups
    assert groups["x"].item() == 3.0
    assert owner.pair is pair
    assert [t.item() for t in pair] == [0.0, 4.0]
    assert owner.count == 1


@pytest.mark.parametrize(
    ("value", "names"),
    [(1, "counter"), (torch.zeros(2), "shape or type of tensor"), (None, "shape or type")],
)
def test_what_cannot_be_pinned_is_told(value: Any, names: str) -> None:
    owner = SimpleNamespace(counter=0, tensor=torch.zeros(1))
    pinned = Pinned(owner)
    setattr(owner, "counter" if isinstance(value, int) else "tensor", value)
    with pytest.raises(CaptureError, match=names):
        pinned.settle()


def test_training_is_the_same_where_the_attributes_of_the_environment_are_pinned() -> None:
    results = []
    for is_pinned in (False, True):
        runner = make_runner()
        graphed = GraphedRollout(runner.env, runner.alg.storage, runner._roll)
        rewards = []
        for _ in range(3):
            runner._watch.begin()
            before = dict(vars(runner.env))
            with torch.inference_mode():
                if is_pinned:
                    graphed._captured()
                    assert all(vars(runner.env)[k] is before[k] for k in ("action", "_whole"))
                else:
                    runner._roll()
            rewards.append(runner.alg.storage.rewards.clone())
            runner._update(1)
        results.append(torch.stack(rewards))
    assert torch.equal(*results)


def test_a_rollout_can_be_taken_back() -> None:
    runner = make_runner()
    graphed = GraphedRollout(runner.env, runner.alg.storage, runner._roll)
    with torch.inference_mode():
        begun = graphed._state()
        runner._roll()
        first = runner.alg.storage.rewards.clone()
        graphed._restore(begun)
        runner._watch.begin()
        runner._roll()
    assert torch.equal(first, runner.alg.storage.rewards)
    assert runner.env.take_statistics().steps == 8 * 32


@pytest.mark.gpu
def test_training_by_graphs_goes_on_like_training_by_calls(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise CaptureError("not today")

    rows, warnings = [], []
    for is_graphed in (True, False):
        if not is_graphed:
            monkeypatch.setattr(cuda_graphs, "capture", refuse)
            monkeypatch.setattr(ppo, "capture", refuse)
        metrics: list[IterationMetrics] = []
        make_runner("cuda:0", "warp").train(metrics.append, lambda: None)
        rows.append([(m.mean_reward, m.losses["value"], m.total_steps) for m in metrics])
        warnings.append([record.getMessage() for record in caplog.records])
        caplog.clear()
    assert warnings[0] == []
    assert len(warnings[1]) == 2
    for graphed, called in zip(*rows, strict=True):
        assert graphed == pytest.approx(called, rel=0.05)
