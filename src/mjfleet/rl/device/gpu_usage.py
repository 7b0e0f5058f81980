"""How a worker's GPU is used. Runs in a worker."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any

import pynvml
import torch


def read_usage(device: str) -> dict[str, float]:
    """Return what NVML says: memory (GiB in use, by all programs), utilization (per cent of its
    newest interval in which a kernel ran) and temperature (degrees Celsius); nothing for the CPU.

    NaN: NVML does not know.
    """
    if torch.device(device).type != "cuda":
        return {}
    handle = _handle(str(torch.cuda.get_device_properties(device).uuid))
    return {
        "gpu_memory": _reading(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used / 2**30),
        "gpu_utilization": _reading(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        "gpu_temperature": _reading(lambda: pynvml.nvmlDeviceGetTemperature(handle, 0)),
    }


@lru_cache
def _handle(uuid: str) -> Any:
    """Return NVML's handle of a GPU; None in a container without NVML."""
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except pynvml.NVMLError:
        return None


def _reading(read: Callable[[], Any]) -> float:
    """Return a reading; NaN for one that this GPU lacks, as a MIG device does."""
    try:
        return float(read())
    except pynvml.NVMLError:
        return math.nan


def usage_columns(ranks: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
    """Return the largest memory and temperature, and the mean utilization, of all that are known.

    `ranks` are the values of each rank, among them those of `read_usage`.
    """
    columns = {"gpu_memory": max, "gpu_utilization": fmean, "gpu_temperature": max}
    found = {}
    for name, join in columns.items():
        if name in ranks[0]:
            known = [values[name] for values in ranks if not math.isnan(values[name])]
            found[name] = join(known) if known else None
    return found
