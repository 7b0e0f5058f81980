"""A stand-in for CUDA graphs, on the CPU, for tests.

`CudaGraphStub.capture` has the interface of `mjfleet.rl.cuda_graphs.capture`. It records what a
function does to tensors, operation by operation; `RecordedGraph.replay` does that again at the same
addresses, whatever Python names refer to since. Like a CUDA graph, it holds:

- Numbers of Python's, and which branch was taken, are those of the capture.
- Memory that the captured function allocated belongs to the graph. Its contents are undefined,
  here all bits set (NaN), until the first replay, and after a failed capture.
- Other memory belongs to whoever holds its tensors. `replay` raises StaleMemoryError where nobody
  does any more; a GPU would read and write whatever lies there by then. With
  `keeps_freed_memory=True` the old values are still there, which shows what a GPU gives with luck.
- Graphs that share a pool overwrite each other's temporary memory.
- Random numbers come from the generator's state at the time of the replay.

CaptureRefusedError stands for CUDA's `operation not permitted when stream is capturing`: a value or
a shape that the host has to know, a copy to or from the host, a generator other than torch's own.
One refusal is stricter than CUDA, which would record a constant in silence: random numbers of
Python's or NumPy's.

Not modelled: streams, what an engine launches, and which tensors are on the host. `.to("cpu")` is a
copy to where all tensors are.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from .recorded_graph import Memory, RecordedGraph, is_tensor

HOST_COPIES = {
    "cpu", "numpy", "tolist", "__array__", "__dlpack__", "tensor", "as_tensor", "asarray",
    "from_numpy", "frombuffer", "new_tensor", "synchronize",
}  # fmt: skip
"""Functions that copy between host and device, which on the CPU are no operation of torch's."""
WAITING = {"normal.Tensor_Tensor", "normal.float_Tensor"}
"""Operations whose implementation asks the device for a value: up to torch 2.13, `normal` tests
whether the least deviation is negative."""


class CaptureRefusedError(RuntimeError):
    """The function did what a CUDA stream does not allow while it is captured."""


class CudaGraphStub:
    """Captures functions."""

    def __init__(self, keeps_freed_memory: bool = False) -> None:
        """See the module."""
        self._keeps_freed_memory = keeps_freed_memory
        self._memories: dict[int, Memory] = {}
        self.graphs: list[RecordedGraph] = []
        """All graphs that were captured."""

    def capture(
        self, function: Callable[[], object], pool: list[RecordedGraph] | None = None
    ) -> RecordedGraph:
        """Return a graph of what `function` does, which is not done by this.

        Args:
            function: what to capture.
            pool: memory to share with other graphs.

        Raises:
            CaptureRefusedError: a CUDA stream would not allow it.
        """
        pool = [] if pool is None else pool
        graph = RecordedGraph(self._memories, pool, self._keeps_freed_memory)
        state, recorder = torch.get_rng_state(), _Recorder(graph)
        try:
            with (
                _no_host_numbers(),
                _RefuseHostCopies(recorder),
                recorder,
            ):
                function()
        finally:
            graph.end_capture()
            torch.set_rng_state(state)
        if recorder.refused:  # The function may have caught the exception.
            raise CaptureRefusedError(f"the capture was invalidated before: {recorder.refused}")
        pool.append(graph)
        self.graphs.append(graph)
        return graph


class _Recorder(TorchDispatchMode):
    """Notes each operation in a graph, and does it, for the shapes of its results."""

    def __init__(self, graph: RecordedGraph) -> None:
        super().__init__()
        self._graph = graph
        self.refused = ""

    def refuse(self, what: str) -> None:
        """Raise what CUDA raises."""
        self.refused = what
        raise CaptureRefusedError(f"operation not permitted when stream is capturing: {what}")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name, base = str(func).removeprefix("aten."), func.overloadpacket.__name__
        self._check(func, name, base, args, kwargs)
        if torch._C._dispatch_has_kernel_for_dispatch_key(
            func.name(), torch._C.DispatchKey.CompositeImplicitAutograd
        ):
            with self:  # In inference mode, compound operations arrive whole.
                return func.decompose(*args, **kwargs)
        if base.startswith("lift_fresh"):  # A number of Python's becomes a tensor: a constant.
            self._graph.memory_of(args[0]).is_constant = True
            return func(*args, **kwargs)
        return self._graph.record(name, func, args, kwargs)

    def _check(self, func: Any, name: str, base: str, args: Any, kwargs: Any) -> None:
        """Refuse what a capture refuses."""
        values, _ = tree_flatten((args, kwargs))
        if torch.Tag.data_dependent_output in func.tags or name in WAITING:
            self.refuse(f"{name} asks for a value")
        if base in ("index", "index_put", "index_put_", "_index_put_impl_"):
            if any(is_tensor(i) and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
                self.refuse("indexing by a boolean mask asks how many there are")
        elif torch.Tag.dynamic_output_shape in func.tags and kwargs.get("output_size") is None:
            self.refuse(f"{name} asks how many there are")
        if base.startswith("lift_fresh") and args[0].dim():
            self.refuse("a copy from the host")
        if torch.Tag.nondeterministic_seeded in func.tags:
            given = [v for v in values if isinstance(v, torch.Generator)]
            if given and _address(given[0]) != _address(torch.default_generator):
                self.refuse(f"{name} draws from a generator that is not registered")


class _RefuseHostCopies(TorchFunctionMode):
    """Refuses copies between host and device."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in HOST_COPIES and not (name == "as_tensor" and is_tensor(args[0])):
            self._recorder.refuse(f"{name} is a copy between host and device")
        return func(*args, **(kwargs or {}))


@contextmanager
def _no_host_numbers() -> Iterator[None]:
    """Refuse random numbers of Python's and NumPy's, which a graph would repeat for ever."""
    before = _host_random_states()
    yield
    if _host_random_states() != before:
        raise CaptureRefusedError("random numbers of the host would be constants of the graph")


def _host_random_states() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state(legacy=False)["state"]["pos"]


def _address(generator: Any) -> int:
    """Tell generators apart: torch hands operations a new Python object for each."""
    return generator._cdata
