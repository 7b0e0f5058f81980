"""Train reinforcement-learning policies on MuJoCo-Warp: one CPU, one GPU or a fleet of GPUs.

The names below are the Python API, which docs/api.md describes. Each is imported when it is used:
torch takes seconds.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mjfleet.api.choose_task import tasks
    from mjfleet.api.in_process import Iteration, iterate, make
    from mjfleet.api.run import Run, TrainingError
    from mjfleet.api.training import train
    from mjfleet.config import AgentConfig, EnvConfig, TrainConfig
    from mjfleet.env import Env
    from mjfleet.errors import UserError

if "torch" not in sys.modules:  # It reads this when it is imported.
    # By default OpenMP's threads spin while they wait for each other. Where other processes want
    # the cores, they spin through their time slices, and an update can take ten times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

MODULES = {
    "AgentConfig": "config",
    "Env": "env",
    "EnvConfig": "config",
    "Iteration": "api.in_process",
    "Run": "api.run",
    "TrainConfig": "config",
    "TrainingError": "api.run",
    "UserError": "errors",
    "iterate": "api.in_process",
    "make": "api.in_process",
    "tasks": "api.choose_task",
    "train": "api.training",
}
"""The module of each name."""
__all__ = [
    "AgentConfig", "Env", "EnvConfig", "Iteration", "Run", "TrainConfig", "TrainingError",
    "UserError", "iterate", "make", "tasks", "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a name of the API, or read `__version__`, which takes several milliseconds."""
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mjfleet.worker.thread_limits import prepare

    prepare()
    return getattr(import_module(f"mjfleet.{MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
