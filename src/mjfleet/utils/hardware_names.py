"""Models and numbers of this machine's CPUs and GPUs. Any process may ask; CUDA stays untouched."""

import math
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def cpu_name() -> str:
    """Return the CPU's model, or its architecture where the kernel does not name the model."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    found = re.search(r"^model name\s*: (.*)$", lines, re.MULTILINE)
    return found[1] if found else platform.machine()


def usable_cores(root: Path = Path("/")) -> int:
    """Return how many CPU cores this process may use: by its affinity, and by CPU quotas.

    A quota, as `docker --cpus` sets, is processor time per period: that of 1.5 cores counts as 2.
    Those of all cgroups around this process hold, see "CPU" in the kernel's cgroup-v2.rst and
    sched-bwc.rst (v1). `root` is where /proc and /sys are.
    """
    found = [len(os.sched_getaffinity(0))]
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # Without cgroups there are no quotas.
        groups = []
    for _, controllers, path in (line.split(":", 2) for line in groups):
        mount = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        if controllers and "cpu" not in controllers.split(","):
            continue
        # In a container the path may be one of the host's: only the mount itself is there then.
        place = mount / path.lstrip("/")
        for folder in (place, *place.parents[: len(place.parts) - len(mount.parts)]):
            if (quota := _cores_of_quota(folder)) is not None:
                found.append(max(1, math.ceil(quota)))
    return min(found)


def _cores_of_quota(folder: Path) -> float | None:
    """Return how many cores a cgroup may use, or None if it has no quota."""
    try:
        if (folder / "cpu.max").is_file():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            names = "cpu.cfs_quota_us", "cpu.cfs_period_us"
            quota, period = ((folder / name).read_text().strip() for name in names)
    except OSError:
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)


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


def rendering_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables for a process that draws, so that it draws on the GPU that CUDA means.

    MuJoCo numbers GPUs by CUDA_VISIBLE_DEVICES, in which it reads no UUIDs; it would draw on
    another GPU.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES", "")
    if not visible.startswith("GPU-"):
        return {}
    with nvml() as driver:
        numbers = range(driver.nvmlDeviceGetCount() if driver else 0)
        handles = [driver.nvmlDeviceGetHandleByIndex(number) for number in numbers]
        uuids = [str(driver.nvmlDeviceGetUUID(handle)) for handle in handles]
    return rendering_numbers(visible, uuids)


def rendering_numbers(visible: str, uuids: Sequence[str]) -> dict[str, str]:
    """Return `rendering_variables` for a list of UUIDs, given those of all GPUs in NVML's order.

    As for CUDA, an entry may be the first part of a UUID. Entries that name no GPU, or several,
    give no variables.
    """
    entries = [entry.strip() for entry in visible.split(",")]
    numbers = [[i for i, uuid in enumerate(uuids) if uuid.startswith(e)] for e in entries]
    if any(len(found) != 1 for found in numbers):
        return {}
    listed = ",".join(str(found[0]) for found in numbers)
    return {"CUDA_VISIBLE_DEVICES": listed, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def gpu_name(physical: str) -> str:
    """Return a GPU's model, such as "NVIDIA H100 80GB HBM3", or `physical` where NVML fails.

    `physical` is an index in the driver's order, a GPU UUID or a MIG UUID.
    """
    with nvml() as driver:
        if driver is None:
            return physical
        try:
            if physical.isdecimal():
                handle = driver.nvmlDeviceGetHandleByIndex(int(physical))
            else:
                handle = driver.nvmlDeviceGetHandleByUUID(physical)
            return str(driver.nvmlDeviceGetName(handle))
        except driver.NVMLError:
            return physical
