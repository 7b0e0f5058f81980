"""A command imports what it needs, without collecting garbage; from Python nothing is changed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import SMALL

TRAIN = """
import gc, sys
from mjfleet.cli.train import train
seen = set()
def note(*_):
    # Counting takes long, and what is frozen stays so: see the end.
    is_frozen = (True, True) in seen or gc.get_freeze_count() > 100_000
    seen.add(("torch" in sys.modules, is_frozen))
gc.callbacks.append(note)
assert train(sys.argv[1:]) == 0
assert gc.get_freeze_count() > 100_000
others = (
    "wandb", "triton", "glfw", "cuda.bindings", "warp", "mujoco_warp", "torchrunx", "matplotlib",
    "av", "jinja2", "PIL",
)
print(seen - {(False, False)}, gc.isenabled(), {*others} & {*sys.modules})
import glfw, triton, wandb
assert triton.jit and wandb.init and glfw.init
"""
ITERATE = """
import gc, sys
import mjfleet
settings = {"env": {"num_envs": 8}, "gpu_ids": None}
mjfleet.make("cartpole-balance", env=settings["env"])
next(mjfleet.iterate("cartpole-balance", **settings))
found = "mjfleet" in str(sys.meta_path), "wandb" in sys.modules
print(gc.isenabled(), gc.get_freeze_count(), *found)
"""
COMPILE = """
from mjfleet.worker.thread_limits import import_for_training
import_for_training("native", "cpu")
import torch
print(torch.compile(lambda x: (2 * x.sin()).sum())(torch.zeros(64)).item())
"""


def printed(code: str, folder: Path, *arguments: str) -> str:
    """Run code in a new process; return the last line that it prints, and what goes to stderr."""
    command = [sys.executable, "-P", "-c", code, *arguments]
    displays = "DISPLAY", "WAYLAND_DISPLAY"
    environ = {name: value for name, value in os.environ.items() if name not in displays}
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1] + done.stderr


def test_train_collects_no_garbage_while_it_imports_only_what_it_needs(tmp_path: Path) -> None:
    flags = "cartpole-balance", "--gpu-ids", "None", "--agent.max-iterations", "1", *SMALL
    assert printed(TRAIN, tmp_path, *flags) == "{(True, True)} True set()"


def test_make_and_iterate_leave_garbage_collection_and_imports_alone(tmp_path: Path) -> None:
    assert printed(ITERATE, tmp_path) == "True 0 False True"


@pytest.mark.slow
def test_torch_compiles_on_a_cpu_though_triton_was_not_imported(tmp_path: Path) -> None:
    assert printed(COMPILE, tmp_path).startswith("0.0")
