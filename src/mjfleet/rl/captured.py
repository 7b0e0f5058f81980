"""Captures functions of fixed tensors as CUDA graphs: one launch replaces many. Runs in a worker.

A graph holds the addresses of tensors, and Python's numbers and branches, as they were when it was
captured.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mjfleet.env.random_numbers import equal_states, random_states, restore_random_states
from mjfleet.sim.simulation import no_garbage_collection

logger = logging.getLogger(__name__)

CLOSE_SHARE = 0.99
"""The share of the values that a graph writes that must be close to those of a call."""
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
        """Describe the function.

        Args:
            name: what the function does, for the warning.
            function: reads and writes tensors whose addresses do not change.
            writes: returns all tensors that the function changes. It is asked at the capture.
            capture: captures graphs. None: the function is always called.
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
        tensors = self._writes()
        device = str(tensors[0].device)
        # Clones with a gradient's history would keep nodes of the default stream alive, which a
        # capture on another stream must not touch.
        before = [tensor.detach().clone() for tensor in tensors]
        host, drawn = random_states("cpu"), random_states(device)
        try:
            graph = capture(self._function)
            if not equal_states(random_states("cpu"), host):
                raise RuntimeError("random numbers are drawn on the host")
            graph.replay()
        except RuntimeError as error:
            self._give_up(error)
            graph = None
        found = [tensor.detach().clone() for tensor in tensors]
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)
        restore_random_states(drawn, device)
        self._function()
        pairs = zip(found, tensors, strict=True)
        close = [torch.isclose(a, b, rtol=1e-3, atol=1e-5).flatten() for a, b in pairs]
        share = torch.cat(close).float().mean().item()
        if graph is not None and share < CLOSE_SHARE:
            self._give_up(RuntimeError(f"a graph differs from a call in {1 - share:.0%} of values"))
        elif graph is not None:
            self._graph = graph

    def _give_up(self, error: RuntimeError) -> None:
        logger.warning("%s is no CUDA graph, and slower for it: %s", self._name, error)
        self._capture = None


def capture(function: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Return a graph of the operations of `function`, which are not executed now.

    `function` is called once, and must not wait for the device.

    Raises:
        RuntimeError: the function cannot be captured.
    """
    stream, pool = torch.cuda.current_stream(), torch.cuda.graph_pool_handle()
    try:
        return _capture(function, pool)
    except BaseException:
        # Torch up to 2.13 leaves three things as they were during a capture that CUDA has ended:
        # the current stream, which is not synchronised with warp's; the allocator, which records
        # into the pool; and up to 2.11 the random generator, which only a capture that succeeds
        # releases. It must stay the same, because other graphs draw from it.
        torch.cuda.set_stream(stream)
        _stop_recording(pool)
        _capture(torch.zeros((), device="cuda").zero_, None)
        raise


def _capture(function: Callable[[], object], pool: Any) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with (
        no_garbage_collection(),
        torch.cuda.graph(graph, pool, capture_error_mode="thread_local"),
    ):
        function()
    return graph


def _stop_recording(pool: Any) -> None:
    """Release the pool of a failed capture, if torch has not."""
    device = torch.cuda.current_device()
    try:
        torch._C._cuda_endAllocateToPool(device, pool)
    except RuntimeError:
        return  # Nothing is recorded into it.
    torch._C._cuda_releasePool(device, pool)
