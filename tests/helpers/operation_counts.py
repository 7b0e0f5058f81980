"""Counts torch's operations, and how often the host waits for a number of theirs.

    <mjlab's environment>/bin/python -m tests.helpers.operation_counts Mjlab-Cartpole-Balance

counts those of an iteration of mjlab's; its environment need not have mjfleet.
"""

import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from typing import Any

from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

STEPS = 24
ITERATIONS = 4
READS = {"cpu", "numpy", "tolist", "item", "__bool__", "__float__", "__int__", "__index__"}
"""Functions that bring a tensor's numbers to the host."""


class Counts(TorchDispatchMode):
    """Counts operations, replays of graphs, and reads by the host."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.allocations = self.replays = self.reads = 0
        self.is_paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_view = any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns)
        if not (self.is_paused or is_view):
            self.operations += 1
            self.allocations += "empty" in func._schema.name  # They launch nothing.
        return func(*args, **(kwargs or {}))

    def capture(self, stub: Any) -> Callable[..., Any]:
        """Return the `capture` of a CudaGraphStub, whose graphs count as one operation each."""

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


def of_last_iteration(
    counts: Counts, train: Callable[[Callable[..., None]], object]
) -> tuple[int, int, int]:
    """Return operations, replays and reads of the last iteration.

    Args:
        counts: counts them.
        train: trains, and calls its argument after each iteration.
    """
    seen: list[tuple[int, int, int]] = []
    with Reads(counts), counts:
        train(lambda *_: seen.append((counts.operations, counts.replays, counts.reads)))
    (a, b, c), (d, e, f) = seen[-2:]
    return d - a, e - b, f - c


def of_rsl_rl(runner: Any, **how: Any) -> tuple[int, int, int]:
    """Return what `of_last_iteration` does, of a runner of rsl_rl's; `how`: how it learns."""

    def train(note: Callable[..., None]) -> None:
        log = runner.logger.log

        def log_and_note(*arguments: Any, **keywords: Any) -> None:
            log(*arguments, **keywords)
            note()

        runner.logger.log = log_and_note
        runner.learn(ITERATIONS, **how)

    return of_last_iteration(Counts(), train)


def of_mjlab(task: str) -> tuple[int, int, int]:
    """Return what `of_last_iteration` does, of one of mjlab's tasks as its command trains it."""
    import_module("mjlab.tasks")  # Registers mjlab's tasks.
    registry, rl = import_module("mjlab.tasks.registry"), import_module("mjlab.rl")
    cfg, agent = registry.load_env_cfg(task), asdict(registry.load_rl_cfg(task))
    cfg.scene.num_envs = 16
    env = import_module("mjlab.envs").ManagerBasedRlEnv(cfg, device="cpu")
    kind = registry.load_runner_cls(task) or rl.MjlabOnPolicyRunner
    settings = agent | {"num_steps_per_env": STEPS}
    runner = kind(rl.RslRlVecEnvWrapper(env), settings, None, "cpu")
    return of_rsl_rl(runner, init_at_random_ep_len=True)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(name, "operations {}, replays {}, reads {}".format(*of_mjlab(name)))
