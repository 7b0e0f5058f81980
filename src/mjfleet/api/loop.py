"""`mjfleet.iterate`: the training loop in this process, one iteration at a time."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mjfleet.api.choose_task import Config
from mjfleet.api.environment import plan_in_process
from mjfleet.env import Env
from mjfleet.env.factory import build_env, on_device
from mjfleet.env.random_numbers import seed_everything
from mjfleet.launch.launch_training import plan_size
from mjfleet.rl.checkpoint_contents import Checkpointer
from mjfleet.rl.runner import Runner
from mjfleet.utils.atomic_write import write_atomically
from mjfleet.worker.gpu_settings import apply_settings


@dataclass(frozen=True)
class Iteration:
    """An iteration that is done, and what trains: change it, and the next iteration uses that."""

    number: int
    """Iterations done, this one included."""
    metrics: dict[str, float | int | None]
    """The columns of metrics.csv."""
    runner: Runner
    """Its `alg` is the algorithm, an rsl_rl PPO: `alg.entropy_coef`, `alg.clip_param`, ..."""
    checkpointer: Checkpointer
    """What `save` writes."""

    @property
    def env(self) -> Env[Any]:
        """The environment."""
        return self.runner.env

    def set_learning_rate(self, value: float) -> None:
        """Set the learning rate of all parameters, from which an adaptive schedule continues."""
        self.runner.alg.set_learning_rate(value)

    def save(self, path: str | Path) -> Path:
        """Write a checkpoint; return its path.

        `train --resume` and `play --resume` take it, and `mjfleet.train(task, init_from=path)` if
        the task is a class.
        """
        data = self.checkpointer.packed()
        write_atomically(Path(path), lambda file: file.write(data))
        return Path(path)


def iterate(
    task: str | type,
    *,
    name: str | None = None,
    config: Config | None = None,
    **changes: Any,
) -> Iterator[Iteration]:
    """Train with one worker in this process; yield each iteration. Leave the loop to stop.

    It writes no run directory: `Iteration.save` keeps a policy, `Iteration.metrics` the numbers.
    torch keeps the settings of `agent.tf32` and `deterministic`, and the process the cores of
    `numa`.

    Args:
        task, name, config, changes: as for `mjfleet.train`.

    Raises:
        UserError: a value is not allowed, or the configuration needs what this machine lacks.
        DivergedError: a state, observation, reward or loss is not finite.
    """
    with ExitStack() as stack:
        changes = {"gpu_ids": "auto", **changes}
        found, plan = plan_in_process(task, name, config, changes, plan_size)
        device, config = plan.device, plan.config
        seed_everything(config.agent.seed)
        stack.enter_context(on_device(plan.engine, device))
        apply_settings(config, device)
        size = config.agent.algorithm.envs_per_group
        env = build_env(found, config, plan.engine, device, plan.threads, group_size=size)
        runner = Runner(env, config.agent, device, plan.threads, found.load)
        checkpointer = Checkpointer(runner, found.name, Path(), keep=None)
        for row in runner.iterations(lambda: None):
            yield Iteration(runner.current_learning_iteration, row, runner, checkpointer)
