"""What a benchmark ran on, without names of hosts or people. Runs in the launching process."""

import os
import platform
from contextlib import suppress
from pathlib import Path

import pynvml

from mjfleet.runs.run_json import git_state
from mjfleet.utils.hardware_names import cpu_name
from mjfleet.utils.packages import stack_versions


def describe_machine() -> dict[str, str]:
    """CPU, memory, GPUs and system."""
    cores = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    found = {"CPU": cpu_name(), "cores used": cores, "memory": f"{memory:.0f} GiB"}
    if gpus := _gpus():
        found["GPU"] = gpus
    system = platform.system()
    with suppress(OSError):  # Some containers have no such file.
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    return found | {"system": f"{system}, kernel {platform.release().partition('-')[0]}"}


def describe_software() -> dict[str, str]:
    """Versions of Python and of the packages that decide the speed; ours with its commit."""
    found = {"python": platform.python_version(), **stack_versions()}
    for state in git_state([Path(__file__).parent]).values():
        if state["commit"]:
            found["mjfleet"] += f" ({state['commit'][:9]}{', changed' if state['dirty'] else ''})"
    return found


def _gpus() -> str:
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        names = [pynvml.nvmlDeviceGetName(handle) for handle in handles]
    except pynvml.NVMLError:
        return ""
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
