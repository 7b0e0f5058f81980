"""A stand-in for CUDA graphs, on the CPU, for tests.

`CudaGraphStub.capture` has the interface of `capture` in `mjfleet.rl.device.graph_capture`. It
records what a function does to tensors, operation by operation; `RecordedGraph.replay` does that
again at the same addresses, whatever Python names refer to since. As in a CUDA graph, Python's
numbers and branches are those of the capture, random numbers follow the generator's state at the
replay, and what asks for a value is refused. Not modelled: streams, copies to the host by `cpu`,
memory that is freed.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only


class CaptureRefusedError(RuntimeError):
    """The function did what a CUDA stream does not allow while it is captured."""


class RecordedGraph:
    """What a function did to tensors, to be done again."""

    def __init__(self) -> None:
        self.operations: list[Callable[[], None]] = []
        self.replays = 0

    def replay(self) -> None:
        """Do all operations again."""
        self.replays += 1
        with torch.no_grad():
            for operation in self.operations:
                operation()


class CudaGraphStub:
    """Captures functions."""

    def __init__(self) -> None:
        self.graphs: list[RecordedGraph] = []
        """All graphs that were captured."""

    def capture(self, function: Callable[[], object]) -> RecordedGraph:
        """Return a graph of what `function` does, which is not done by this.

        Raises:
            CaptureRefusedError: a CUDA stream would not allow it.
        """
        state, recorder = torch.get_rng_state(), _Recorder()
        try:
            with recorder:
                function()
        finally:
            for storage, before in reversed(recorder.before.values()):
                storage.copy_(before)
            torch.set_rng_state(state)
        if recorder.refused:  # The function has caught the exception.
            raise CaptureRefusedError(recorder.refused)
        self.graphs.append(recorder.graph)
        return recorder.graph


class _Recorder(TorchDispatchMode):
    """Adds each operation to a graph, and does it, for the shapes of its results."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = RecordedGraph()
        self.before: dict[int, tuple[Any, Any]] = {}
        """The memory that was written, and what was in it, by its address."""
        self.refused = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if asks_for_a_value(func, args):
            self.refused = f"{func} asks the device for a value"
            raise CaptureRefusedError(self.refused)
        # Without autograd's nodes, which would stay alive.
        args, kwargs = tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs))
        inputs = {_memory(value) for value in _tensors((args, kwargs))}
        writes = False
        for argument, value in _named(func, args, kwargs):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in _tensors(value):
                    storage, writes = tensor.untyped_storage(), True
                    self.before.setdefault(storage.data_ptr(), (storage, storage.clone()))
        result = func(*args, **kwargs)
        places = [
            value.detach()
            if isinstance(value, torch.Tensor) and _memory(value) not in inputs
            else None
            for value in tree_flatten(result)[0]
        ]

        def repeat() -> None:
            again, _ = tree_flatten(func(*args, **kwargs))
            for place, value in zip(places, again, strict=True):
                if place is not None:
                    place.copy_(value)

        if writes or any(place is not None for place in places):  # Otherwise it is a view.
            self.graph.operations.append(repeat)
        return result


def asks_for_a_value(func: Any, args: Any) -> bool:
    """Return whether the host has to know a value, or a shape that depends on values."""
    if "index" in func.__name__:
        return any(t.dtype in (torch.bool, torch.uint8) for t in _tensors(args[1]))
    asks = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & {*func.tags}
    return bool(asks) or str(func).startswith("aten.normal.Tensor")


def _named(func: Any, args: Any, kwargs: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Return the arguments of an operation with their descriptions."""
    arguments = func._schema.arguments
    values = dict(zip((a.name for a in arguments), args, strict=False)) | kwargs
    return [(argument, values.get(argument.name)) for argument in arguments]


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [value for value in tree_flatten(tree)[0] if isinstance(value, torch.Tensor)]


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def refuse(*arguments: Any, **keywords: Any) -> Any:
    """Take the place of `capture` where nothing can be captured."""
    raise RuntimeError("nothing is captured here")
