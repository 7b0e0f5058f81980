"""Captures functions of fixed tensors as CUDA graphs: one launch replaces many. Runs in a worker.

A graph holds the addresses of tensors, and Python's numbers and branches, as they were when it was
captured.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from mjfleet.env.random_numbers import equal_states, random_states, restore_random_states
from mjfleet.utils.garbage_collection import no_garbage_collection

logger = logging.getLogger(__name__)

CLOSE_SHARE = 0.99  # Share of a graph's values that must be close to a call's.
Capture = Callable[[Callable[[], object]], Any]
"""`capture`, or what takes its place in tests without a GPU."""


class Captured:
    """A function that becomes a CUDA graph in its second call.

    The first call loads kernels, which is not allowed during a capture. The second captures the
    function, and compares what the graph writes with what a call writes from the same state. If
    they differ, or if the function cannot be captured, it is called, with a warning.
    """

    def __init__(
        self,
        name: str,
        function: Callable[[], object],
        writes: Callable[[], Sequence[torch.Tensor]],
        capture: Capture | None,
    ) -> None:
        """Take a function of tensors whose addresses do not change, and a `name` for messages.

        `writes` returns all tensors that it changes; it is called at the capture. `capture`
        captures graphs. None: the function is always called.
        """
        self._name, self._function, self._writes = name, function, writes
        self._capture = capture
        self._was_called = False
        self._graph: Any = None

    def __call__(self) -> None:
        """Do what the function does."""
        if self._graph is not None:
            self._graph.replay()
        elif self._capture is None or not self._was_called:
            self._was_called = True
            self._function()
        else:
            self._capture_and_compare(self._capture)

    def forget(self) -> None:
        """Capture the function anew, because numbers or addresses have changed."""
        self._graph, self._was_called = None, False

    def _capture_and_compare(self, capture: Capture) -> None:
        tensors, graph, failure = self._writes(), None, ""
        device = str(tensors[0].device)
        # Detached: a capture on another stream must not touch autograd's nodes of this one.
        before = [tensor.detach().clone() for tensor in tensors]
        host, drawn = random_states("cpu"), random_states(device)
        try:
            graph = capture(self._function)
            if not equal_states(random_states("cpu"), host):
                raise RuntimeError("random numbers are drawn on the host")
            graph.replay()
        except RuntimeError as error:
            failure = str(error)
        found = [tensor.detach().clone() for tensor in tensors]
        with torch.no_grad():
            torch.ops.aten._foreach_copy_([tensor.detach() for tensor in tensors], before)
        restore_random_states(drawn, device)
        self._function()
        alike = partial(torch.isclose, rtol=1e-3, atol=1e-5)
        close = torch.cat([x.flatten() for x in map(alike, found, tensors)])
        if not failure and (share := close.float().mean().item()) < CLOSE_SHARE:
            failure = f"a graph differs from a call in {1 - share:.0%} of values"
        if failure:
            logger.warning("%s runs without a CUDA graph, slower: %s", self._name, failure)
            self._capture = None
        else:
            self._graph = graph


def capture(function: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Return a graph of what `function` does, which must not wait for the device. Nothing is done.

    Raises:
        RuntimeError: the function cannot be captured.
    """
    stream, pool = torch.cuda.current_stream(), torch.cuda.graph_pool_handle()
    try:
        return _capture(function, pool)
    except BaseException:
        # Torch up to 2.13 leaves three things as they were during a capture that CUDA has ended:
        # the current stream; the allocator, which records into the pool; and up to 2.11 the random
        # generator, which other graphs draw from, and only a capture that succeeds releases.
        torch.cuda.set_stream(stream)
        device = torch.cuda.current_device()
        with suppress(RuntimeError):  # Nothing is recorded into it.
            torch._C._cuda_endAllocateToPool(device, pool)
            torch._C._cuda_releasePool(device, pool)
        _capture(torch.zeros((), device="cuda").zero_, None)
        raise


def _capture(function: Callable[[], object], pool: Any) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    thread_local = torch.cuda.graph(graph, pool, capture_error_mode="thread_local")
    with no_garbage_collection(), thread_local:
        function()
    return graph
