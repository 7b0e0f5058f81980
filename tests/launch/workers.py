"""What the tests of several workers share: how to start one, and a task that does odd things."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ..conftest import SMALL, TESTS, WarmCommand, changed, copy_task, write_task

PAIR = (*SMALL, "--agent.max-iterations", "4", "--cpu-workers", "2")
ENDLESS = changed(PAIR, "--agent.max-iterations", "100000")
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


def wait_for_iteration(process: subprocess.Popen | WarmCommand, number: int) -> None:
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

RANK = int(os.environ.get("RANK", "0"))

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


ARM = (TESTS / "models/arm.xml").read_text()


def noisy_env(setup: str = "pass", step: str = "pass") -> str:
    """Return the source of an environment that does something at first, and in its 30th step."""
    return NOISY_ENV.replace("SETUP", setup).replace("STEP", step)


def write_noisy(folder: Path, setup: str = "pass", step: str = "pass", model: str = ARM) -> Path:
    """Write the task `noisy` of such an environment; returns its folder."""
    return write_task(folder / "tasks", "noisy", NOISY_CONFIG, noisy_env(setup, step), model)


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
    task = copy_task(folder / "tasks", "faulty")
    (task / "env.py").write_text((task / "env.py").read_text() + FAULT.replace("STEP", step))


def saved(run_dir: Path, iteration: int) -> dict[str, torch.Tensor]:
    """The actor of a checkpoint."""
    path = run_dir / "checkpoints" / f"model_{iteration}.pt"
    return torch.load(path, weights_only=True)["actor_state_dict"]
