"""What is done to tensors on a CPU, recorded once and then repeated. Runs in a worker."""

import logging
import warnings
from collections.abc import Callable, Sequence
from operator import getitem
from threading import Lock
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.jit._fuser import optimized_execution
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

logger = logging.getLogger(__name__)

aten = torch.ops.aten
# torch would rather compile functions, which takes a C++ compiler, and half a minute each time.
warnings.filterwarnings("ignore", "`torch.jit.trace", FutureWarning)
_ONE_AT_A_TIME = Lock()


class Recorded:
    """A function of tensors that changes others in place: its first call, and then a repetition.

    Between operations on small tensors, Python's code and autograd take as long as they do. What
    they come down to, backward passes included, is the same each time: it is recorded below
    autograd, and repeated without them for other inputs of the same shapes.

    What is no input is read and written where it was. A function that asks for a tensor's value,
    on which its operations may depend, is called as it is, with a warning.
    """

    def __init__(self, function: Callable[[Any, float], object]) -> None:
        """Stand for a function of tensors and a number."""
        self._function = function
        self._programs: dict[tuple[Any, ...], Callable[[Sequence[torch.Tensor]], object]] = {}
        self._works = True

    def __call__(self, inputs: Sequence[torch.Tensor], number: float) -> None:
        """Do what the function does."""
        if not self._works:
            self._function(inputs, number)
            return
        key = number, *(tensor.shape for tensor in inputs)
        if key in self._programs:
            self._programs[key](inputs)
            return
        recorder = _Recorder(inputs)
        with recorder:
            self._function(inputs, number)
        if recorder.obstacle:
            logger.warning("updates are not recorded, and slower for it: %s", recorder.obstacle)
            self._works = False
        else:
            self._programs[key] = recorder.program(inputs)


class _Recorder(TorchDispatchMode):
    """Watches operations, and writes them down as the nodes of a graph."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.obstacle = ""
        """Why there can be no program, if there is a reason."""
        self._graph = Graph()
        self._held: list[torch.Tensor] = []
        """What was there before, besides the inputs."""
        self._alive: list[Any] = [*inputs]
        """All that was seen: no other tensor takes its identity or its memory meanwhile."""
        self._nodes = {
            id(tensor): self._graph.placeholder(f"input_{i}") for i, tensor in enumerate(inputs)
        }
        self._changing = set(map(_memory, inputs))
        """The memory of what is another tensor each time: inputs, and results of operations."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        self._alive.append((args, kwargs, results))
        tensors = [value for value in tree_leaves((args, kwargs)) if torch.is_tensor(value)]
        if func is aten.detach.default and id(args[0]) in self._nodes:
            self._nodes[id(results)] = self._nodes[id(args[0])]
        elif not (func.is_view and all(_memory(t) not in self._changing for t in tensors)):
            node = self._graph.call_function(func, *tree_map(self._node, (args, kwargs)))
            self._name(results, node, func)
        return results

    def program(self, inputs: Sequence[torch.Tensor]) -> Callable[[Sequence[torch.Tensor]], object]:
        """The operations as a function of inputs, by TorchScript: free of Python and its lock.

        Where that does not know an operation, such as a convolution's backward pass, by Python.
        """
        self._graph.output(next(iter(self._graph.nodes)))  # It wants a result.
        held = self._held
        # Tracing does what it traces, so not to the tensors themselves.
        copies = tuple(tensor.clone() for tensor in (*inputs, *held))
        run: Any = GraphModule({}, self._graph).forward
        try:
            with torch.no_grad(), _ONE_AT_A_TIME:
                run = torch.jit.trace(run, copies, check_trace=False)
        except RuntimeError as error:
            logger.info("updates are repeated by Python: %s", error)

        def repeat(inputs: Sequence[torch.Tensor]) -> None:
            # What it takes for optimal rounds otherwise: a resumed run would be another one.
            with torch.no_grad(), optimized_execution(False):
                run(*inputs, *held)

        return repeat

    def _name(self, results: Any, node: Node, func: Any) -> None:
        """Remember what an operation's results are called; those that it was given have a name."""
        if isinstance(results, tuple | list):
            for i, result in enumerate(results):
                self._name(result, self._graph.call_function(getitem, (node, i)), func)
        elif torch.is_tensor(results):
            if id(results) not in self._nodes:
                self._nodes[id(results)] = node
                self._changing.add(_memory(results))
        elif results is not None:
            self.obstacle = f"{func} asks for a tensor's value"

    def _node(self, value: Any) -> Any:
        """What an argument is called."""
        if not torch.is_tensor(value):
            return value
        if id(value) not in self._nodes:
            if _memory(value) in self._changing:
                self.obstacle = "a tensor came about unseen"
            self._nodes[id(value)] = self._graph.placeholder(f"held_{len(self._held)}")
            self._held.append(value.detach())
        return self._nodes[id(value)]


def _memory(tensor: torch.Tensor) -> int:
    """Where the memory begins that a tensor is a view of."""
    return tensor.untyped_storage().data_ptr()
