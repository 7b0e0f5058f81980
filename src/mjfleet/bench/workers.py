"""A configuration for some number of workers. Runs in the launching process."""

import os
from dataclasses import replace

from mjfleet.bench.setup import Setup
from mjfleet.config import TrainConfig
from mjfleet.errors import UserError


def with_workers(setup: Setup, workers: int, num_envs: int, threads: int | None) -> TrainConfig:
    """The configuration of so many workers on the first devices.

    Args:
        setup: the task and its devices.
        workers: their number.
        num_envs: worlds of each.
        threads: CPU threads that they share; None: one for each core.

    Raises:
        UserError: there are not so many GPUs or threads.
    """
    config = setup.config(num_envs)
    gpus = setup.devices.indices
    if gpus and workers > len(gpus):
        raise UserError(f"--workers is {workers}; it must be at most {len(gpus)}, the GPUs.")
    if gpus:
        return replace(config, gpu_ids=list(gpus[:workers]), cpu_threads=threads)
    cores = threads or len(os.sched_getaffinity(0))
    if workers > cores:
        raise UserError(f"--workers is {workers}; it must be at most {cores}, the CPU threads.")
    if workers > 1:
        config = replace(config, gpu_ids="auto", cpu_workers=workers)
    return replace(config, cpu_threads=threads)
