"""A task as benchmarks build it from a worker's arguments. Runs in their child processes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjfleet.config import from_dict
from mjfleet.env.factory import build_env, on_device
from mjfleet.env.random_numbers import seed_everything
from mjfleet.registry import find_task
from mjfleet.worker.gpu_settings import apply_settings
from mjfleet.worker.worker_args import WorkerArgs

if TYPE_CHECKING:
    from mjfleet.rl.runner import Runner


class BuiltTask:
    """A task's environment on a worker's first device, and how to train in it."""

    def __init__(self, worker: WorkerArgs) -> None:
        self.worker, self.device = worker, worker.devices[0]
        self.found = find_task(worker.task, Path(worker.task_folder))
        self.config = from_dict(self.found.defaults(), worker.config)
        apply_settings(self.config, self.device)  # As in training.
        seed_everything(self.config.agent.seed)
        args = self.found, self.config, worker.engine, self.device, worker.threads
        self.env = build_env(*args, group_size=self.config.agent.algorithm.envs_per_group)

    def runner(self, **settings: Any) -> "Runner":
        """Return a runner with new networks, and with further arguments of its own."""
        from mjfleet.rl.runner import Runner  # Other stacks train without ours.

        seed_everything(self.config.agent.seed)
        args = self.env, self.config.agent, self.device, self.worker.threads, self.found.load
        return Runner(*args, **settings)


@contextmanager
def built_task(worker: Mapping[str, Any]) -> Iterator[BuiltTask]:
    """Build a task on its device by the fields of a `WorkerArgs`, read from JSON."""
    args = WorkerArgs(**worker)
    with on_device(args.engine, args.devices[0]):
        yield BuiltTask(args)
