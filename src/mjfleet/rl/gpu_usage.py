"""What NVML says of a worker's GPU. Runs in a worker, once per iteration."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pynvml
import torch


@dataclass(frozen=True, kw_only=True)
class GpuUsage:
    """A GPU's readings; NaN where NVML does not know."""

    memory: float  # GiB in use, by all programs.
    utilization: float  # Per cent of NVML's newest interval in which a kernel ran.
    temperature: float  # Degrees Celsius.


def read_usage(device: str) -> GpuUsage | None:
    """Read the usage of a GPU; None for the CPU."""
    if device == "cpu":
        return None
    try:
        return GpuUsage(
            memory=torch.cuda.device_memory_used(device) / 2**30,
            utilization=float(torch.cuda.utilization(device)),
            temperature=float(torch.cuda.temperature(device)),
        )
    except (pynvml.NVMLError, RuntimeError):  # In a container without NVML, or on a MIG device.
        return GpuUsage(memory=math.nan, utilization=math.nan, temperature=math.nan)


def usage_columns(usages: Sequence[GpuUsage | None]) -> dict[str, float | None]:
    """Return the columns: the largest memory and temperature, and the mean utilization."""
    known = [usage for usage in usages if usage is not None]
    if not known:
        return {}
    seen = [usage for usage in known if not math.isnan(usage.memory)]
    return {
        "gpu_memory": max((usage.memory for usage in seen), default=None),
        "gpu_utilization": sum(u.utilization for u in seen) / len(seen) if seen else None,
        "gpu_temperature": max((usage.temperature for usage in seen), default=None),
    }
