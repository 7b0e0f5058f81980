"""The task of a benchmark."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from mjfleet.bench.throughput_child import built_task
from mjfleet.config import from_dict, to_dict
from mjfleet.worker.worker_args import WorkerArgs

from ..env.test_env import BUNDLED


@pytest.fixture
def precision() -> Iterator[None]:
    """What is set for the whole process is set back."""
    backends: tuple[Any, ...] = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [backend.allow_tf32 for backend in backends]
    yield
    for backend, was in zip(backends, before, strict=True):
        backend.allow_tf32 = was


@pytest.mark.parametrize("tf32", [True, False])
def test_benchmarks_compute_as_precisely_as_training(precision: None, tf32: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = not tf32
    found = BUNDLED["cartpole-balance"]
    config = from_dict(found.defaults(), {"agent": {"tf32": tf32}, "env": {"num_envs": 2}})
    args = WorkerArgs(
        task=found.name, task_folder=str(found.folder), config=to_dict(config), devices=("cpu",),
        engine="native", threads=1, run_dir="",
    )  # fmt: skip
    with built_task(args):
        assert torch.backends.cuda.matmul.allow_tf32 is tf32
