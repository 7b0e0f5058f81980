"""Settings of a worker's process that must be made before torch and mujoco are imported."""

import ctypes
import os
import sys
from contextlib import suppress
from importlib import import_module

from platformdirs import user_cache_path

from mjfleet.utils.lasting_imports import lasting_imports
from mjfleet.utils.mujoco_import import import_mujoco
from mjfleet.utils.user_folders import have_user_folders

THRESHOLDS = {"MALLOC_MMAP_THRESHOLD_": (-3, 32 << 20), "MALLOC_TRIM_THRESHOLD_": (-1, 2**31 - 1)}
"""mallopt(3)'s number and our value (bytes) of what an environment variable sets otherwise."""


def prepare() -> None:
    """Prepare this process; call it before anything imports torch or mujoco."""
    have_user_folders(os.environ)
    # rsl_rl imports GitPython, which otherwise fails without a git command.
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    # torch makes this folder when it is imported, by default among temporary files.
    inductor = user_cache_path("mjfleet") / "torchinductor"
    with suppress(OSError):
        inductor.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(inductor))
    # glibc is to reuse freed memory instead of returning it to the system: the tensors of an update
    # come and go in the same sizes, and page faults took a quarter of its time.
    for variable, (parameter, size) in THRESHOLDS.items():
        if variable not in os.environ:
            ctypes.CDLL(None).mallopt(parameter, size)
    import_mujoco()


def import_prepared(device: str, *modules: str) -> None:
    """Prepare this process, a command's, for `device`, and import `modules` of mjfleet's."""
    prepare()
    names = [f"mjfleet.{module}" for module in modules]
    if not sys.modules.keys() >= {*names}:  # A worker is a fork of a process that has them.
        with lasting_imports(device):
            for name in names:
                import_module(name)


def import_for_training(engine: str, device: str) -> None:
    """Prepare this process, a worker's or one that forks workers, and import what they need."""
    import_prepared(device, "worker.training", f"sim.{engine}_engine")


def thread_variables(threads: int) -> dict[str, str]:
    """Return the environment variables that give a worker so many CPU threads."""
    pools = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return dict.fromkeys(pools, str(threads))
