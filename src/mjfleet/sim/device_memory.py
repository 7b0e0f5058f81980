"""How much memory a worker's device has, and whether something fits. Runs in a worker."""

import os

import psutil
import torch

from mjfleet.errors import UserError
from mjfleet.utils.memory import REMEDY


def free_memory(device: str) -> int:
    """Return the bytes that a GPU has left or, for the CPU, this worker's share of its host's."""
    if not device.startswith("cuda"):
        # torchrunx and torchrun tell each worker how many of them this host has.
        return psutil.virtual_memory().total // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return torch.cuda.mem_get_info(device)[0]


def check_fits(what: str, size: int, num_envs: int, device: str = "cpu") -> None:
    """Raise UserError for what takes more bytes of a device, for so many environments, than fit.

    Linux promises more memory than there is, and kills the process that comes to use it.
    """
    total = free_memory(device)
    if size > total:
        where = device if device.startswith("cuda") else "this worker"
        need, have = (f"{number / 2**30:,.0f} GiB" for number in (size, total))
        fits = f"; of {num_envs:,} environments {num_envs * total // size:,} would fit"
        raise UserError(
            f"{what} need at least {need} of memory, {where} has {have}{fits}: {REMEDY}."
        )
