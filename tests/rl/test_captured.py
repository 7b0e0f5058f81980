"""Training by captured rollouts and updates is training by calls, on a stand-in for CUDA graphs."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mjfleet.config import from_dict
from mjfleet.env import Env, EnvShard
from mjfleet.loggers.iteration_metrics import IterationMetrics
from mjfleet.registry import find_task
from mjfleet.rl.evaluator import Evaluator
from mjfleet.rl.runner import Runner
from mjfleet.sim import make_simulation

from ..conftest import Run
from ..env.test_env import BUNDLED, ENGINES
from ..helpers.cuda_graph_stub import CudaGraphStub

TASKS = ("cartpole-swingup", "go1-velocity-flat", "go1-velocity-rough")
SWINGUP = BUNDLED["cartpole-swingup"]
SWINGUP_ENV: Any = SWINGUP.load(SWINGUP.task.env_class)
NUM_ENVS, STEPS, ITERATIONS = 8, 6, 6
Between = Callable[[Runner, int], object]


def build(
    found: Any, env_class: Any, engine: Any = "native", shard: EnvShard | None = None
) -> Env[Any]:
    """Build environments whose episodes last ten steps."""
    torch.manual_seed(0)
    cfg = replace(found.task.env, num_envs=NUM_ENVS)
    model = env_class.make_model(cfg)
    cfg = replace(cfg, episode_seconds=10 * cfg.decimation * model.opt.timestep)
    sim = make_simulation(engine, model, NUM_ENVS, device="cpu")
    return env_class(cfg, sim, 1, shard)


def make_runner(found: Any, env: Env[Any], capture: Any, evaluator: Any = None) -> Runner:
    torch.manual_seed(1)
    random.seed(1)
    algorithm = {"backprop": "autograd"}
    values = {"num_steps_per_env": STEPS, "max_iterations": ITERATIONS, "algorithm": algorithm}
    agent = from_dict(found.task.agent, values)
    return Runner(env, agent, "cpu", 1, found.load, evaluator=evaluator, capture=capture)


def learned(runner: Runner, between: Between = lambda runner, iteration: None) -> Any:
    """Train; return what was measured and learned."""
    rows: list[Any] = []

    def note(metrics: IterationMetrics) -> None:
        evaluation = {k: v for k, v in metrics.evaluation.items() if k != "seconds"}
        episodes = metrics.mean_return, metrics.terms, metrics.task, metrics.nan_resets
        steps = metrics.total_steps, metrics.mean_reward, metrics.losses
        rows.append((episodes, steps, evaluation))
        between(runner, metrics.iteration)

    runner.train(note, lambda: None)
    networks = runner.alg.actor, runner.alg.critic
    return repr(rows), [v.tolist() for n in networks for v in n.state_dict().values()]


def refuse(*arguments: Any, **keywords: Any) -> Any:
    raise RuntimeError("nothing is captured here")


def assert_same(
    caplog: pytest.LogCaptureFixture,
    found: Any,
    env_class: Any,
    engine: str = "native",
    between: Between = lambda runner, iteration: None,
    is_captured: bool = True,
    prepare: Callable[[Env[Any]], object] = lambda env: None,
    evaluates: bool = False,
) -> None:
    """Assert that training by graphs, if rollouts can be captured, is training by calls."""
    results = []
    for by_graphs in (True, False):
        env = build(found, env_class, engine)
        prepare(env)
        evaluator, sims = None, [env.sim]
        if evaluates:
            shard = EnvShard(first=0, count=NUM_ENVS, total=NUM_ENVS)
            other = build(found, env_class, engine, shard)
            evaluator = Evaluator(other, interval=1)
            sims.append(other.sim)
        stub = CudaGraphStub(*sims)
        runner = make_runner(found, env, stub.capture if by_graphs else refuse, evaluator)
        results.append(learned(runner, between))
        if by_graphs:
            warned = ["rollouts are no CUDA graphs" in r.getMessage() for r in caplog.records]
            assert warned == ([] if is_captured else [True]), caplog.text
            replays = [graph.replays for graph in stub.graphs]
            assert min(replays) > 1
            # An update, a rollout, and a part of an evaluation.
            assert len(replays) == 1 + is_captured + evaluates
    assert results[0] == results[1]


@pytest.mark.parametrize("engine", [engine for engine, _ in ENGINES])
@pytest.mark.parametrize("name", TASKS)
def test_bundled_tasks(name: str, engine: str, caplog: pytest.LogCaptureFixture) -> None:
    found = BUNDLED[name]
    assert_same(caplog, found, found.load(found.task.env_class), engine)


def test_the_task_that_new_task_writes(
    run: Run, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert run("mjfleet", "new-task", "fresh").returncode == 0
    found = find_task("fresh", tmp_path / "tasks" / "fresh")
    assert_same(caplog, found, found.load(found.task.env_class))


def test_updates_in_mixed_precision(caplog: pytest.LogCaptureFixture) -> None:
    agent = from_dict(SWINGUP.task.agent, {"algorithm": {"use_mixed_precision": True}})
    found = replace(SWINGUP, task=replace(SWINGUP.task, agent=agent))
    assert_same(caplog, found, SWINGUP_ENV)


def test_a_number_that_is_changed_in_the_algorithm_is_captured_anew() -> None:
    def between(runner: Runner, iteration: int) -> None:
        if iteration == 3:
            runner.alg.entropy_coef = 0.5

    results, graphs = [], 0
    for by_graphs in (True, False):
        env = build(SWINGUP, SWINGUP_ENV)
        stub = CudaGraphStub(env.sim)
        runner = make_runner(SWINGUP, env, stub.capture if by_graphs else refuse)
        results.append(learned(runner, between))
        graphs += len(stub.graphs)
    assert results[0] == results[1]
    assert graphs == 3  # A rollout, and an update before and after the change.


class SwapsTensors(SWINGUP_ENV):
    """Two tensors take turns, as newest and previous action do."""

    def setup(self) -> None:
        super().setup()
        self.newest = torch.zeros(NUM_ENVS, 1)
        self.previous = torch.ones(NUM_ENVS, 1)

    def apply(self, action: torch.Tensor) -> None:
        self.newest, self.previous = self.previous, self.newest
        self.newest.mul_(0.5).add_(action)
        super().apply(action + 0.1 * self.previous)


class DrawsGlobally(SWINGUP_ENV):
    def reset_worlds(self, mask: torch.Tensor) -> None:
        super().reset_worlds(mask)
        noise = 0.1 * torch.randn(NUM_ENVS, 1)
        self.sim.qpos[:, :1] += torch.where(mask.unsqueeze(1), noise, 0.0)


class Filter:
    """A helper that replaces a tensor of its own."""

    def __init__(self) -> None:
        self.mean = torch.zeros(NUM_ENVS, 1)

    def __call__(self, action: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * action
        return self.mean


class HasHelper(SWINGUP_ENV):
    def setup(self) -> None:
        super().setup()
        self.helpers = {"filter": Filter()}

    def apply(self, action: torch.Tensor) -> None:
        super().apply(self.helpers["filter"](action))


@pytest.mark.parametrize("env_class", [SwapsTensors, DrawsGlobally, HasHelper])
def test_tasks_that_replace_tensors_or_draw_from_torch(
    env_class: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert_same(caplog, SWINGUP, env_class)


class Counter:
    def __init__(self) -> None:
        self.steps = 0
        self.history: list[int] = []


class CountsInPython(SWINGUP_ENV):
    def setup(self) -> None:
        super().setup()
        self.counter = Counter()

    def apply(self, action: torch.Tensor) -> None:
        self.counter.steps += 1
        super().apply(action * (0.5 + 0.1 * (self.counter.steps % 5)))


class AppendsToList(CountsInPython):
    def apply(self, action: torch.Tensor) -> None:
        self.counter.history.append(1)
        super().apply(action + 0.01 * len(self.counter.history))


class CountsInClass(SWINGUP_ENV):
    steps = 0

    def apply(self, action: torch.Tensor) -> None:
        CountsInClass.steps += 1
        super().apply(action * (0.5 + 1e-4 * CountsInClass.steps))


COUNTER = Counter()


class CountsInModule(SWINGUP_ENV):
    def apply(self, action: torch.Tensor) -> None:
        COUNTER.steps += 1
        super().apply(action * (0.5 + 1e-4 * COUNTER.steps))


class CountsInClosure(SWINGUP_ENV):
    def setup(self) -> None:
        super().setup()
        steps = 0

        def count() -> int:
            nonlocal steps
            steps += 1
            return steps

        self.count = count

    def apply(self, action: torch.Tensor) -> None:
        super().apply(action * (0.5 + 1e-4 * self.count()))


class GrowsByKey(CountsInPython):
    def apply(self, action: torch.Tensor) -> None:
        vars(self.counter)[f"step {len(vars(self.counter))}"] = action
        SWINGUP_ENV.apply(self, action + 0.01 * len(vars(self.counter)))


class DrawsOnHost(SWINGUP_ENV):
    def apply(self, action: torch.Tensor) -> None:
        super().apply(action * random.random())


class AsksTheDevice(SWINGUP_ENV):
    def apply(self, action: torch.Tensor) -> None:
        super().apply(action * 2.0 if action.mean() > 0 else action)


REFUSED = {
    CountsInPython: "env.counter.steps has changed",
    CountsInClass: "CountsInClass.steps has changed",
    CountsInModule: "test_captured.COUNTER.steps has changed",
    CountsInClosure: "env.count.steps.value has changed",
    AppendsToList: "env.counter.history.",
    GrowsByKey: "env.counter.step ",
    DrawsOnHost: "random numbers",
    AsksTheDevice: "asks for a value",
}
"""Tasks that no graph can stand for, and what the warning says of each."""


@pytest.mark.parametrize("env_class", REFUSED)
def test_tasks_that_no_graph_can_stand_for_go_on_by_calls(
    env_class: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def prepare(env: Env[Any]) -> None:
        COUNTER.steps = CountsInClass.steps = 0

    assert_same(caplog, SWINGUP, env_class, is_captured=False, prepare=prepare)
    (warning, *_) = [r.getMessage() for r in caplog.records]
    assert REFUSED[env_class] in warning


def test_calls_resets_and_evaluations_between_replays(caplog: pytest.LogCaptureFixture) -> None:
    def between(runner: Runner, iteration: int) -> None:
        rollout: Any = runner.rollout
        rollout.by_calls = iteration == 3
        if iteration == 4:
            with torch.inference_mode():
                runner.env.reset()

    assert_same(caplog, SWINGUP, SWINGUP_ENV, between=between, evaluates=True)


def test_environments_that_are_reset_for_their_numbers(caplog: pytest.LogCaptureFixture) -> None:
    def prepare(env: Env[Any]) -> None:
        env.on_nan = "reset"

    def between(runner: Runner, iteration: int) -> None:
        if iteration in (1, 4):
            runner.env.sim.qpos[iteration] = torch.nan

    assert_same(caplog, SWINGUP, SWINGUP_ENV, between=between, prepare=prepare)


def test_training_goes_on_by_calls_after_a_failure_inside_a_capture() -> None:
    results = []
    for fails_late in (True, False):
        env = build(SWINGUP, CountsInPython)
        stub = CudaGraphStub(env.sim)

        def fail(function: Any, *rest: Any, stub: CudaGraphStub = stub, **keywords: Any) -> Any:
            def broken() -> None:
                function()
                raise RuntimeError("the last launch failed")

            return stub.capture(broken, *rest, **keywords)

        results.append(learned(make_runner(SWINGUP, env, fail if fails_late else refuse)))
    assert results[0] == results[1]


def test_a_checkpoint_is_loaded_between_replays(caplog: pytest.LogCaptureFixture) -> None:
    def between(runner: Runner, iteration: int) -> None:
        if iteration == 1:
            saved.clear()
            saved.update(runner.alg.save())
        elif iteration == 4:
            runner.alg.load(saved, {"actor": True, "critic": True, "optimizer": True}, strict=True)

    saved: dict[str, Any] = {}
    results = []
    for by_graphs in (True, False):
        env = build(SWINGUP, SWINGUP_ENV)
        capture = CudaGraphStub(env.sim).capture if by_graphs else refuse
        results.append(learned(make_runner(SWINGUP, env, capture), between))
        assert by_graphs == (not caplog.records)
    assert results[0] == results[1]


def test_a_rollout_is_captured_again_when_the_simulation_has_other_buffers() -> None:
    def between(runner: Runner, iteration: int) -> None:
        if iteration == 3:
            sim = runner.env.sim
            sim.restore(sim.state() | {"room": torch.tensor((99, 99))})

    results, stubs = [], []
    for by_graphs in (True, False):
        env = build(SWINGUP, SWINGUP_ENV, "warp")
        stubs.append(CudaGraphStub(env.sim))
        runner = make_runner(SWINGUP, env, stubs[-1].capture if by_graphs else refuse)
        results.append(learned(runner, between))
    assert results[0] == results[1]
    graphs = [(graph.replays, [o.name for o in graph.operations]) for graph in stubs[0].graphs]
    # Captured in the second iteration, and again in the fourth.
    assert [replays for replays, names in graphs if "simulation.launch" in names] == [2, 3]


def test_a_normalizer_that_nobody_protects_breaks_a_captured_rollout() -> None:
    found = BUNDLED["go1-velocity-flat"]
    env = build(found, found.load(found.task.env_class))
    stub = CudaGraphStub(env.sim)
    runner = make_runner(found, env, stub.capture)
    learned(runner)
    (graph,) = (g for g in stub.graphs if any("simulation" in o.name for o in g.operations))
    storage: Any = runner.alg.storage
    policy: Any = runner.alg.actor

    def error() -> float:
        """Compare the first mean actions with those that a call gives."""
        means = policy(storage.observations[0])
        return (means - storage.distribution_params[0][0]).abs().max().item()

    with torch.inference_mode():
        runner.rollout()
        assert error() < 1e-5
        policy.obs_normalizer.update(10.0 * torch.randn(64, policy.obs_dim))
        graph.replay()  # It reads the deviations of before: rsl_rl's update made new ones.
        assert error() > 1e-3
        runner.rollout()
        assert error() < 1e-5
