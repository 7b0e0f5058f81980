"""What the tests of several workers share: how to start one, and a task that does odd things."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ..conftest import REPOSITORY, write_task

SMALL = (
    "--env.num-envs", "16", "--env.episode-seconds", "1", "--agent.num-steps-per-env", "8",
    "--agent.max-iterations", "4", "--cpu-workers", "2",
)  # fmt: skip
TRAIN = (sys.executable, "-m", "mjfleet.cli.train")


@contextmanager
def started(
    folder: Path, *flags: str, task: str = "cartpole-balance"
) -> Iterator[subprocess.Popen]:
    """A run in its own session, started as a script's background job; ended with the block.

    Such a job is told to ignore SIGINT.
    """
    with subprocess.Popen(
        ["env", "--ignore-signal=INT", *TRAIN, task, *flags],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_iteration(process: subprocess.Popen, number: int) -> None:
    assert process.stdout is not None
    while not process.stdout.readline().startswith(f"iteration={number}/"):
        assert process.poll() is None, "training ended too early"


NOISY_CONFIG = """
from mjfleet.config import EnvConfig, Task
TASKS = {"noisy": Task(summary="Noisy.", env=EnvConfig(num_envs=8, decimation=2),
                       env_class="env:NoisyEnv")}
"""
NOISY_ENV = """
import os
import signal
import sys
import torch
from mjfleet.env import Env
from mjfleet.errors import UserError

RANK = int(os.environ["RANK"])

class NoisyEnv(Env):
    model_file = "model.xml"

    def setup(self):
        self.steps = self.add_state("steps", shared=True)
        SETUP

    def reset_worlds(self, mask):
        pass

    def apply(self, action):
        self.sim.ctrl[:] = action
        self.steps += 1
        if self.steps == 30:
            STEP

    def observe(self):
        state = self.sim.qpos.clone()
        return {"actor": state, "critic": state}

    def rewards(self):
        return {"nothing": torch.zeros(self.num_envs)}
"""


def write_noisy(folder: Path, setup: str = "pass", step: str = "pass") -> None:
    model = (Path(__file__).parents[1] / "models/arm.xml").read_text()
    env = NOISY_ENV.replace("SETUP", setup).replace("STEP", step)
    write_task(folder / "tasks", "noisy", NOISY_CONFIG, env, model)


FAULT = """
import os
import signal


def _apply(self, action, apply=CartpoleEnv.apply):
    self.cache("applied")
    self.applied = getattr(self, "applied", 0) + 1
    if self.applied == 12 and os.environ["RANK"] == "1" and not os.path.exists("failed"):
        open("failed", "w").close()
        STEP
    apply(self, action)

CartpoleEnv.apply = _apply
"""
"""In the second iteration, once."""


def write_faulty(folder: Path, step: str) -> None:
    """A task like cartpole-balance, but for the fault."""
    task = shutil.copytree(REPOSITORY / "tasks/cartpole", folder / "tasks/faulty")
    config = (task / "config.py").read_text().replace('"cartpole-', '"faulty-')
    (task / "config.py").write_text(config)
    (task / "env.py").write_text((task / "env.py").read_text() + FAULT.replace("STEP", step))


def saved(run_dir: Path, iteration: int) -> dict[str, torch.Tensor]:
    """The actor of a checkpoint."""
    path = run_dir / "checkpoints" / f"model_{iteration}.pt"
    return torch.load(path, weights_only=True)["actor_state_dict"]
