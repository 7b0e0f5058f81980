"""What a task's own code may do between the parts of training. Runs in every worker."""

from pathlib import Path
from typing import Any

from mjfleet.loggers.logger import Row


class RunnerHook:
    """Base of the classes that `agent.runner_hook` names; every method does nothing.

    Each rank has one. What changes parameters must do the same on all ranks: they are compared
    after each iteration. `runner.env`, `runner.alg` and `runner.agent` are environment, algorithm
    and configuration; `runner.current_learning_iteration` continues where a resumed run has ended.
    """

    def __init__(self, runner: Any) -> None:
        """Called once training begins, after a checkpoint has been restored."""
        self.runner = runner

    def before_iteration(self, iteration: int) -> None:
        """Called before the rollout of an iteration, counted from 1."""

    def after_iteration(self, metrics: Row) -> None:
        """Called after an iteration, with its row of metrics.csv."""

    def after_save(self, checkpoints: list[Path]) -> None:
        """Called after checkpoints were due, on every rank; only rank 0's list names files."""
