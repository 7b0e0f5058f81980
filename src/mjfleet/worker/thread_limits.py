"""Settings of a worker's process that must be made before torch is imported.

Thread counts, OpenMP's wait policy and malloc's thresholds. Imports nothing heavy.
"""

import ctypes
import os

KEPT_BYTES = 32 << 20
"""Allocations up to this size keep their memory when they are freed: glibc's upper limit."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""


def prepare() -> None:
    """Prepare this process; call it before anything imports torch."""
    # By default OpenMP's threads spin while they wait for each other. Where other processes want
    # the cores, they spin through their time slices, and an update can take ten times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # rsl_rl imports GitPython, which fails without a git command unless it is told not to.
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    _keep_freed_memory()


def thread_variables(threads: int) -> dict[str, str]:
    """Return the environment variables that give a worker so many CPU threads."""
    pools = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return dict.fromkeys(pools, str(threads)) | {
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
    }


def _keep_freed_memory() -> None:
    """Have glibc reuse freed memory instead of returning it to the system.

    The tensors of an update come and go in the same sizes; page faults took a quarter of its time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
