"""Operations on tensors that were recorded once, to be done again; see cuda_graph_stub."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map_only

ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
UNDEFINED = 255
"""Each byte of undefined memory: NaN, -1, and True."""


class StaleMemoryError(RuntimeError):
    """A graph uses memory that was freed after its capture."""


@dataclass(eq=False)
class Memory:
    """The memory of some tensors, and the graphs' own views of it."""

    storage: torch.UntypedStorage
    owner: "RecordedGraph | None"
    """The graph whose capture allocated it."""
    is_constant: bool = False
    """Whether it holds a number of Python's as it was during the capture."""
    views: dict[Any, torch.Tensor] = field(default_factory=dict)

    def view(self, like: torch.Tensor) -> torch.Tensor:
        """Return the graphs' own tensor at the place of another one."""
        place = (like.dtype, like.storage_offset(), tuple(like.shape), like.stride())
        if place not in self.views:
            with _disable_current_modes(), torch.inference_mode(mode=False):
                self.views[place] = torch.empty(0, dtype=like.dtype).set_(self.storage, *place[1:])
        return self.views[place]

    @property
    def is_freed(self) -> bool:
        """Whether only graphs hold it; memory of NumPy or warp is not torch's to free."""
        owners = torch._C._storage_Use_Count(self.storage._cdata) - 1 - len(self.views)
        return owners <= 0 and self.storage.resizable() and not self.is_constant

    def poison(self) -> None:
        """Make its contents undefined."""
        torch.empty(0, dtype=torch.uint8).set_(self.storage).fill_(UNDEFINED)


@dataclass(frozen=True)
class Operation:
    """One launch: a function, its arguments, and where its new results go."""

    name: str
    function: Callable[..., Any]
    args: Any
    kwargs: dict[str, Any]
    results: Sequence[tuple[int, torch.Tensor]] = ()
    """Index among the flattened results, and the tensor."""

    def run(self) -> None:
        """Do it."""
        found, _ = tree_flatten(self.function(*self.args, **self.kwargs))
        for index, place in self.results:
            place.copy_(found[index])


class RecordedGraph:
    """What a function did to tensors, to be done again."""

    def __init__(
        self,
        memories: dict[int, Memory],
        pool: "list[RecordedGraph]",
        keeps_freed_memory: bool,
    ) -> None:
        """Begin with nothing.

        Args:
            memories: of all graphs, by the address of the storage.
            pool: the graphs with which this one shares memory.
            keeps_freed_memory: see the module.
        """
        self.operations: list[Operation] = []
        self.replays = 0
        self._memories, self._pool = memories, pool
        self._keeps_freed_memory = keeps_freed_memory
        self._used: set[Memory] = set()
        self._before: dict[Memory, torch.UntypedStorage] = {}
        """What was in the memory that the captured function has written."""
        # What earlier graphs of the pool allocated and nobody holds is free for this one.
        self._reused = [m for m in memories.values() if m.owner in pool and m.is_freed]

    def replay(self) -> None:
        """Do all operations again."""
        if not self._keeps_freed_memory:
            self._refuse_freed_memory()
        self.replays += 1
        overwritten = list(self._reused)
        for graph in self._pool:
            if any(memory.owner is self for memory in graph._reused):
                overwritten += graph._own()
        for memory in overwritten:
            memory.poison()
        with torch.inference_mode(mode=False), torch.no_grad():
            for operation in self.operations:
                operation.run()

    def pool(self) -> "list[RecordedGraph]":
        """Return the graphs with which this one shares memory."""
        return self._pool

    def record(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Note an operation of torch's, and do it, for the shapes of its results."""
        own_args, own_kwargs = self.views(args), self.views(kwargs)
        written = list(_written(function, args, kwargs))
        for memory in {self.memory_of(tensor) for tensor in written}:
            if memory.owner is not self and memory not in self._before:
                self._before[memory] = memory.storage.clone()
        result = function(*args, **kwargs)
        outputs, _ = tree_flatten(result)
        known = {v.untyped_storage()._cdata for v in outputs if is_tensor(v)} & set(self._memories)
        results = [
            (index, self.memory_of(value, owner=self).view(value))
            for index, value in enumerate(outputs)
            if is_tensor(value) and value.untyped_storage()._cdata not in known
        ]
        is_view = not results and not written
        if not is_view and name.partition(".")[0] not in ALLOCATIONS:
            self.operations.append(Operation(name, function, own_args, own_kwargs, results))
        return result

    def views(self, value: Any) -> Any:
        """Return arguments with the graph's own tensors in the place of the caller's."""
        return tree_map_only(torch.Tensor, lambda t: self.memory_of(t).view(t), value)

    def end_capture(self) -> None:
        """Undo what the captured function has written: a capture launches nothing."""
        # An engine's fields may lie in overlapping memory: what was written last is undone first.
        for memory, before in reversed(self._before.items()):
            memory.storage.copy_(before)
        self._before.clear()
        for memory in self._own():
            memory.poison()

    def _own(self) -> list[Memory]:
        return [memory for memory in self._used if memory.owner is self]

    def memory_of(self, tensor: torch.Tensor, owner: "RecordedGraph | None" = None) -> Memory:
        """Return the memory that holds a tensor; `owner`: of memory that is new."""
        storage = tensor.untyped_storage()
        memory = self._memories.setdefault(storage._cdata, Memory(storage, owner))
        self._used.add(memory)
        return memory

    def _refuse_freed_memory(self) -> None:
        for memory in self._used:
            if memory.owner is None and memory.is_freed:
                users = sorted({o.name for o in self.operations if _uses(o, memory)})
                shapes = sorted({str(tuple(view.shape)) for view in memory.views.values()})
                raise StaleMemoryError(
                    f"{', '.join(users)}: a tensor of shape {' or '.join(shapes)} was freed after "
                    "the capture; its place now holds something else"
                )


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor."""
    return isinstance(value, torch.Tensor)


def _uses(operation: Operation, memory: Memory) -> bool:
    values, _ = tree_flatten((operation.args, operation.kwargs))
    return any(value is view for value in values for view in memory.views.values())


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors that an operation writes."""
    arguments = func._schema.arguments
    named = dict(zip((a.name for a in arguments), args, strict=False)) | kwargs
    for argument in arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from filter(is_tensor, tree_flatten(named.get(argument.name))[0])
