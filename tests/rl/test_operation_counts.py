"""Operations that an iteration starts, and how often the host waits for a number of theirs.

On a GPU each operation is a launch or more, and each read by the host a wait. They are counted on
the CPU: by calls, with the stand-in for CUDA graphs, and by rsl_rl's own runner.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rsl_rl.runners import OnPolicyRunner
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from mjfleet.rl.adapters.rsl_rl_adapter import rsl_rl_config
from mjfleet.rl.runner import Runner

from ..conftest import REPOSITORY
from ..env.test_env import BUNDLED, build_task
from ..helpers.cuda_graph_stub import CudaGraphStub

STEPS = 24
ITERATIONS = 4
READS = {"cpu", "numpy", "tolist", "item", "__bool__", "__float__", "__int__", "__index__"}
"""Functions that bring a tensor's numbers to the host."""


class Counts(TorchDispatchMode):
    """Counts operations, replays of graphs, and reads by the host."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.replays = self.reads = 0
        self.is_paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_view = any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns)
        if not (self.is_paused or is_view):
            self.operations += 1
        return func(*args, **(kwargs or {}))

    def capture(self, stub: CudaGraphStub) -> Callable[..., Any]:
        """Return the stub's `capture`, whose graphs count as one operation each time."""

        def counted(*arguments: Any, **keywords: Any) -> Any:
            graph = stub.capture(*arguments, **keywords)
            replay = graph.replay

            def replay_counted() -> None:
                self.replays += 1
                self.is_paused, before = True, self.is_paused
                replay()
                self.is_paused = before

            graph.replay = replay_counted
            return graph

        return counted


class Reads(TorchFunctionMode):
    """Counts reads by the host into `counts`."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.counts = counts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in READS and not self.counts.is_paused:
            self.counts.reads += 1
        return func(*args, **(kwargs or {}))


def of_last_iteration(counts: Counts, train: Callable[[Callable[[int], None]], object]) -> Any:
    """Train with a function that is called after each iteration; return the last one's counts."""
    seen: list[tuple[int, int, int]] = []
    with Reads(counts), counts:
        train(lambda _: seen.append((counts.operations, counts.replays, counts.reads)))
    return tuple(b - a for a, b in zip(seen[-2], seen[-1], strict=True))


def ours(task: str, captures: bool) -> Any:
    env = build_task(task, "native", "cpu", num_envs=16)
    agent = BUNDLED[task].task.agent
    changes = {"num_steps_per_env": STEPS, "max_iterations": ITERATIONS}
    agent = replace(agent, **changes, algorithm=replace(agent.algorithm, backprop="autograd"))
    counts, stub = Counts(), CudaGraphStub(env.sim)
    capture = counts.capture(stub) if captures else refuse
    runner = Runner(env, agent, "cpu", 1, BUNDLED[task].load, capture=capture)
    return of_last_iteration(
        counts, lambda note: runner.train(lambda m: note(m.iteration), lambda: None)
    )


def refuse(*arguments: Any, **keywords: Any) -> Any:
    raise RuntimeError("nothing is captured here")


def rsl_rls(task: str) -> Any:
    env = build_task(task, "native", "cpu", num_envs=16)
    found, counts = BUNDLED[task], Counts()
    cfg = rsl_rl_config(found.task.agent, found.load)
    runner: Any = OnPolicyRunner(
        env, cfg | {"num_steps_per_env": STEPS}, log_dir=None, device="cpu"
    )

    def train(note: Callable[[int], None]) -> None:
        log = runner.logger.log

        def log_and_note(*arguments: Any, **keywords: Any) -> None:
            log(*arguments, **keywords)
            note(0)

        runner.logger.log = log_and_note
        runner.learn(ITERATIONS)

    return of_last_iteration(counts, train)


@pytest.mark.parametrize("task", ["cartpole-balance", "go1-velocity-flat"])
def test_graphs_leave_few_operations_and_reads_as_documented(task: str) -> None:
    by_graphs, by_calls, stock = ours(task, True), ours(task, False), rsl_rls(task)
    assert by_graphs[1:] == (2, 1)  # A rollout and an update, and one read of what they gave.
    assert by_graphs[0] < by_calls[0] < stock[0]
    page = (REPOSITORY / "docs/speed.md").read_text()
    (row,) = re.findall(rf"^\| {task} +\|(.*)\|$", page, flags=re.MULTILINE)[-1:]
    launches = by_graphs[0] + by_graphs[1], by_calls[0], stock[0]
    found = [*zip(launches, (by_graphs[2], by_calls[2], stock[2]), strict=True)]
    written = [float(number) for number in re.findall(r"[\d,]+", row.replace(",", ""))]
    assert written == pytest.approx([n for pair in found for n in pair], rel=0.1), found
