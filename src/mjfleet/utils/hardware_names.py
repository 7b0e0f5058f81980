"""Models and numbers of this machine's CPUs and GPUs. Any process may ask; CUDA stays untouched."""

import math
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def cpu_name() -> str:
    """Return the CPU's model, or its architecture where the kernel does not name the model."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    found = re.search(r"^model name\s*: (.*)$", lines, re.MULTILINE)
    return found[1] if found else platform.machine()


CPU_CGROUPS = (
    ("sys/fs/cgroup", "^0::/(.*)$", ("cpu.max",)),
    (
        "sys/fs/cgroup/cpu",
        r"^\d+:(?:\w+,)*cpu(?:,\w+)*:/(.*)$",
        ("cpu.cfs_quota_us", "cpu.cfs_period_us"),
    ),
)
"""Where cgroups of version 2 and of version 1 are mounted, which line of /proc/self/cgroup says in
which group this process is, and the files of a quota and its period."""


def usable_cores(root: Path = Path("/")) -> int:
    """Return how many CPU cores this process may use: by its affinity, and by CPU quotas.

    A quota of 1.5 cores counts as 2; those of all cgroups around this process hold, see "CPU" in
    the kernel's cgroup-v2.rst, and sched-bwc.rst for version 1. `root` is where /proc and /sys are.
    """
    cores = len(os.sched_getaffinity(0))
    try:
        groups = (root / "proc/self/cgroup").read_text()
    except OSError:  # Without cgroups there are no quotas.
        return cores
    for name, pattern, files in CPU_CGROUPS:
        path, mount = re.search(pattern, groups, re.MULTILINE), root / name
        # In a container the path may be one of the host's: only the mount itself is there then.
        place = mount / (path[1] if path else "")
        for folder in (place, *place.parents[: len(place.parts) - len(mount.parts)]):
            with suppress(OSError):
                quota, period = " ".join((folder / file).read_text() for file in files).split()
                if quota not in ("max", "-1"):
                    cores = min(cores, max(1, math.ceil(int(quota) / int(period))))
    return cores


@contextmanager
def nvml() -> Iterator[Any]:
    """Yield the module `pynvml`, ready for calls, or None where the NVIDIA driver does not answer.

    NVML is the driver's library for asking about GPUs without a CUDA context.
    """
    import pynvml  # `--help` does without.

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        pynvml = None
    try:
        yield pynvml
    finally:
        if pynvml:
            pynvml.nvmlShutdown()


def count_gpus() -> int:
    """Return the number of NVIDIA GPUs of this host, visible to CUDA or not."""
    with nvml() as driver:
        return driver.nvmlDeviceGetCount() if driver else 0


def driver_version() -> str:
    """Return the version of the NVIDIA driver; empty: there is none."""
    with nvml() as driver:
        return str(driver.nvmlSystemGetDriverVersion()) if driver else ""


def gpu_name(physical: str) -> str:
    """Return a GPU's model, such as "NVIDIA H100 80GB HBM3", or `physical` where NVML fails."""
    return str(ask_gpu(physical, "nvmlDeviceGetName") or physical)


def ask_gpu(physical: str, function: str, *arguments: object) -> Any:
    """Return what a function of NVML says of a GPU, or None where that fails.

    `physical` is an index in the driver's order, a GPU UUID or a MIG UUID.
    """
    with nvml() as driver:
        if driver is None:
            return None
        try:
            if physical.isdecimal():
                handle = driver.nvmlDeviceGetHandleByIndex(int(physical))
            else:
                handle = driver.nvmlDeviceGetHandleByUUID(physical)
            return getattr(driver, function)(handle, *arguments)
        except driver.NVMLError:
            return None
