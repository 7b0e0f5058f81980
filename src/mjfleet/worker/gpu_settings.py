"""Precision and determinism of torch in a worker, and the cores next to its GPU. Imports torch."""

import os
from typing import Any

import torch

from mjfleet.config import TrainConfig
from mjfleet.utils.hardware_names import ask_gpu


def apply_settings(config: TrainConfig, device: str) -> None:
    """Apply `--agent.tf32`, `--deterministic` and `--numa`, before a GPU computes anything."""
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
    if config.numa == "auto" and device != "cpu":
        _use_near_cores(device)


def _use_near_cores(device: str) -> None:
    """Keep to the cores of the GPU's NUMA node, where NVML knows them and they may be used."""
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    masks = ask_gpu(uuid, "nvmlDeviceGetCpuAffinity", ((os.cpu_count() or 1) + 63) // 64)
    if near := near_cores(list(masks or ()), os.sched_getaffinity(0)):
        os.sched_setaffinity(0, near)


def near_cores(masks: list[int], allowed: set[int]) -> set[int]:
    """Return the allowed cores whose bits are set in masks of 64 bits, as NVML gives them."""
    return {
        core for core in allowed if core // 64 < len(masks) and masks[core // 64] >> core % 64 & 1
    }
