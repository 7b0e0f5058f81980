"""Imports what a process needs to its end. In the processes of commands alone."""

import gc
import os
import sys
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from mjfleet.utils.garbage_collection import no_garbage_collection


def _needless(device: str) -> Set[str]:
    """Return modules that others import if they are there, and that training here does without."""
    needless = {"wandb"}
    if device == "cpu":
        needless |= {"triton", "cuda.bindings"}  # torch compiles for a CPU without them.
    if not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        needless |= {"glfw"}  # mujoco draws in windows by it.
    return needless


class _Missing(MetaPathFinder):
    """Finds none of these modules, as if they were not installed."""

    def __init__(self, modules: Set[str]) -> None:
        self._modules = modules

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in self._modules:
            raise ModuleNotFoundError(f"{name} is not needed yet", name=name)
        return None


@contextmanager
def lasting_imports(device: str) -> Iterator[None]:
    """Import modules in the block without what costs time and gains nothing.

    Modules that training on `device` does not need are not found. No garbage is collected, and
    until the process ends the collector passes over what exists after the block: modules are half a
    million objects that stay.
    """
    missing = _Missing(_needless(device))
    sys.meta_path.insert(0, missing)
    try:
        with no_garbage_collection():
            yield
            gc.freeze()
    finally:
        sys.meta_path.remove(missing)
