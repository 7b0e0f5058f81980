"""Precision and determinism of torch in a worker. Imports torch."""

import os
from typing import Any

import torch

from mjfleet.config import TrainConfig


def apply_settings(config: TrainConfig) -> None:
    """Apply `--agent.tf32` and `--deterministic`, before a GPU computes anything."""
    # Once `fp32_precision` is set, torch refuses to read these, which its own compiler does.
    torch.backends.cuda.matmul.allow_tf32 = config.agent.tf32
    torch.backends.cudnn.allow_tf32 = config.agent.tf32
    if config.deterministic:
        # Without it cuBLAS chooses its algorithm by how streams happen to overlap.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # Nothing here reads memory before it is written.
        deterministic: Any = torch.utils.deterministic
        deterministic.fill_uninitialized_memory = False
