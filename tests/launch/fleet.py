"""What the tests of several workers share: how to start one, and a task that does odd things."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..conftest import write_task

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
    steps = 0

    def setup(self):
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
