"""Keeps a worker to the cores of its GPU's NUMA node. Imports nothing heavy."""

import os
from collections.abc import Sequence

from mjfleet.utils.hardware_names import ask_gpu


def use_near_cores(gpus: Sequence[str], local_rank: int, threads: int) -> int:
    """Keep this thread, and all that it starts, to the cores near a worker's GPU.

    Nothing changes where NVML does not know them, or none of them may be used.

    Args:
        gpus: what the driver calls the GPU of each worker of this host; empty: CPU workers.
        local_rank: the worker's place among them.
        threads: CPU threads that the worker was to have.

    Returns:
        CPU threads of the worker: at most its share of the cores near its GPU.
    """
    mask_words = ((os.cpu_count() or 1) + 63) // 64
    masks = [ask_gpu(gpu, "nvmlDeviceGetCpuAffinity", mask_words) or () for gpu in gpus]
    cores, threads = near_share(masks, os.sched_getaffinity(0), local_rank, threads)
    if cores:
        os.sched_setaffinity(0, cores)
    return threads


def near_share(
    masks: Sequence[Sequence[int]], allowed: set[int], local_rank: int, threads: int
) -> tuple[set[int], int]:
    """Return the allowed cores near a worker's GPU, and how many threads it has on them.

    `masks` are those of each worker's GPU, of 64 bits each, as NVML gives them. Workers whose GPUs
    are near the same cores divide them.
    """
    near = [
        {c for c in allowed if c // 64 < len(mask) and mask[c // 64] >> c % 64 & 1}
        for mask in masks
    ]
    cores = near[local_rank] if near else set[int]()
    if not cores:
        return cores, threads
    return cores, max(1, min(threads, len(cores) // near.count(cores)))
