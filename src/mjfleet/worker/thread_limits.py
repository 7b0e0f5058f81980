"""What a worker sets before it imports torch and rsl_rl: less to import, less to wait for.

Importing this imports nothing heavy.
"""

import ctypes
import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"
KEPT_BYTES = 32 << 20
"""Allocations up to this size keep their memory when they are freed: glibc's upper limit."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of mallopt(3)."""


def prepare() -> None:
    """Prepare this process; to be called before anything imports torch."""
    # OpenMP's threads wait for each other by spinning. Where anything else wants a core, they spin
    # through their time slices: updates were seen to take ten times as long. Sleeping costs little.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _keep_freed_memory()
    _postpone_compiler()
    _import_rsl_rl_without_wandb()


@contextmanager
def importing() -> Iterator[None]:
    """Import torch in this block: what stays is not searched for garbage again and again.

    That would take a sixth of the time, and more when the process ends.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _keep_freed_memory() -> None:
    """Use freed memory again, instead of giving it back to the system and faulting it in anew.

    Tensors of an update come and go in the same sizes; a quarter of its time went into page faults.
    """
    with_glibc = getattr(ctypes.CDLL(None), "mallopt", None)
    if with_glibc is not None:
        with_glibc(M_MMAP_THRESHOLD, KEPT_BYTES)
        with_glibc(M_TRIM_THRESHOLD, 2**31 - 1)


def _postpone_compiler() -> None:
    """Let torch's compiler be imported when something compiles.

    tensordict, torch's optimisers and its process groups import it, which takes longer than all
    else, only to tell it which functions it is not to compile.
    """
    if COMPILER not in sys.modules:
        sys.modules[COMPILER] = _Postponed(COMPILER)
        sys.meta_path.insert(0, _PartsOfPostponed())


class _Postponed(ModuleType):
    """Stands for the compiler until something asks it for more than not to compile."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.disable = self.allow_in_graph = self.assume_constant_result = _as_it_is
        self.graph_break: Callable[..., None] = lambda *args, **kwargs: None
        self.trace_rules = _PostponedRules()

    def __getattr__(self, name: str) -> Any:
        # Also `__path__`, for which an import of a part of the package asks.
        if name in ("__spec__", "__file__"):
            raise AttributeError(name)
        return getattr(_import_compiler(), name)


class _PostponedRules:
    """Stands for what of the compiler a process group asks to forget what it has compiled."""

    def clear_lru_cache(self) -> None:
        """Nothing has been compiled."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_import_compiler().trace_rules, name)


class _PartsOfPostponed(MetaPathFinder, Loader):
    """Finds parts that the import of the whole, on the way to them, has imported already."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The part as it is, once; None for all else."""
        del path, target
        there = sys.modules.get(fullname)
        if not fullname.startswith(f"{COMPILER}.") or there is None:
            return None
        return ModuleSpec(fullname, self, loader_state=there.__spec__)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module that is there."""
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Leave it as it was before this import."""
        spec = module.__spec__
        module.__spec__ = spec.loader_state if spec else None


def _import_compiler() -> ModuleType:
    """Put the compiler in its place."""
    if isinstance(sys.modules.get(COMPILER), _Postponed):
        del sys.modules[COMPILER]
    return importlib.import_module(COMPILER)


def _as_it_is(function: Any = None, *args: Any, **kwargs: Any) -> Any:
    """What the compiler's decorators do where nothing is compiled, with arguments or without."""
    return function if function is not None else _as_it_is


def _import_rsl_rl_without_wandb() -> None:
    """Import rsl_rl, which would import wandb for a logger of its own; ours has its own import."""
    if "wandb" in sys.modules or "rsl_rl" in sys.modules:
        return
    sys.modules["wandb"] = None  # pyright: ignore[reportArgumentType]  # Python's way to say no.
    try:
        with importing():
            importlib.import_module("rsl_rl.utils")
    finally:
        del sys.modules["wandb"]
