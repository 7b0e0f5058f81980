"""Captures updates as CUDA graphs: one launch replaces many.

Runs in a worker. If a graph cannot be captured, or its results differ from those of the calls,
training continues by calls, with a warning. Rollouts are calls: as a graph, they were no faster.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from mjfleet.env.random_numbers import random_states, restore_random_states
from mjfleet.rl.pinned_state import CaptureError, PinnedState, equal
from mjfleet.sim.simulation import no_garbage_collection

logger = logging.getLogger(__name__)

CLOSE_SHARE = 0.99
"""The fraction of the compared values that must be close."""
Capture = Callable[..., Any]
"""`capture`, or what takes its place in tests without a GPU."""


class GraphedWork:
    """Work that becomes CUDA graphs in its second call.

    The first call loads kernels, which is not allowed during a capture. The second one captures,
    and compares what the graphs do with what calls do from the same state. If they differ, or if
    nothing can be captured, the work is done by calls.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], Iterable[Callable[[], object]]],
        owners: Callable[[], dict[str, Any]],
        result: Callable[[], torch.Tensor],
        capture: Capture | None,
    ) -> None:
        """Describe the work.

        Args:
            name: the work in the plural, for a warning.
            work: does the work. What it returns or yields is called between two graphs, the same
                functions each time.
            owners: returns objects that hold what the work changes, by name, see PinnedState.
            result: returns what is compared, on the device.
            capture: captures graphs. None: the work is always done by calls.
        """
        self._name, self._work, self._owners, self._result = name, work, owners, result
        self._capture = capture
        self._graphs: list[tuple[Any, Callable[[], object] | None]] = []
        self._pinned: PinnedState | None = None
        self._num_calls = 0

    def __call__(self) -> None:
        """Do the work."""
        self._num_calls += 1
        if self._capture is None or self._num_calls == 1:
            self._call()
        elif self._pinned is None:
            self._capture_and_compare(self._capture)
        else:
            try:
                self._pinned.settle()  # Other work may have replaced tensors.
            except CaptureError as error:
                self._give_up(error)
                self._call()
            else:
                self._replay()

    def _call(self) -> None:
        for between in self._work():
            between()

    def _replay(self) -> None:
        for graph, between in self._graphs:
            graph.replay()
            if between is not None:
                between()

    def _capture_and_compare(self, capture: Capture) -> None:
        """Do the work by graphs, go back, and do it by calls.

        It is done twice even if nothing can be captured, because other ranks wait for this one
        between their graphs.
        """
        pinned = PinnedState(self._owners())
        restore = self._remember(pinned)
        try:
            self._capture_graphs(capture, pinned)
            self._pinned = pinned
        except RuntimeError as error:
            self._give_up(error)
        restore()
        (self._replay if self._pinned else self._call)()
        found = self._result().clone()
        restore()
        self._call()
        is_close = torch.isclose(found, self._result(), rtol=1e-3, atol=1e-5)
        if self._pinned and (share := is_close.float().mean().item()) < CLOSE_SHARE:
            self._give_up(CaptureError(f"graphs differ from calls in {1 - share:.0%} of values"))

    def _capture_graphs(self, capture: Capture, pinned: PinnedState) -> None:
        """Capture the work in one graph for each part of it.

        Raises:
            RuntimeError: the work cannot be captured, or a replay would do something else.
        """
        host = random_states("cpu")
        parts: Iterator[Callable[[], object]] | None = None
        between, pool = None, None

        def next_part() -> None:
            nonlocal parts, between
            parts = iter(self._work()) if parts is None else parts
            between = next(parts, None)
            if between is None:
                pinned.settle()

        while not self._graphs or between is not None:
            graph = capture(next_part, pool=pool)
            pool = graph.pool()
            self._graphs.append((graph, between))
        if not equal(random_states("cpu"), host):
            raise CaptureError("random numbers are drawn on the host")

    def _remember(self, pinned: PinnedState) -> Callable[[], None]:
        """Return a function that restores the state of now."""
        device = str(self._result().device)
        # Clones with a gradient's history would keep nodes of the default stream alive, which a
        # capture on another stream must not touch.
        tensors = [(tensor, tensor.detach().clone()) for tensor in pinned.tensors()]
        random_numbers = random_states(device)

        @torch.no_grad()
        def restore() -> None:
            pinned.put_back()
            for tensor, value in tensors:
                tensor.copy_(value)
            restore_random_states(random_numbers, device)

        return restore

    def _give_up(self, error: Exception) -> None:
        logger.warning("%s are no CUDA graphs, and slower for it: %s", self._name, error)
        self._pinned = self._capture = None
        self._graphs.clear()


def capture(function: Callable[[], object], pool: Any = None) -> torch.cuda.CUDAGraph:
    """Return a graph of the operations of `function`, which are not executed now.

    Args:
        function: called once. It must not wait for the device.
        pool: the pool of a graph that never runs at the same time, which shares its memory. None:
            a new one.

    Raises:
        RuntimeError: the function cannot be captured.
    """
    stream = torch.cuda.current_stream()
    pool = torch.cuda.graph_pool_handle() if pool is None else pool
    try:
        return _capture(function, pool)
    except BaseException:
        # Torch up to 2.13 leaves three things as they were during a capture that CUDA has ended:
        # the current stream, which is not synchronised with warp's; the allocator, which records
        # into the pool; and up to 2.11 the random generator, which only a capture that succeeds
        # releases. It must stay the same, because other graphs draw from it.
        torch.cuda.set_stream(stream)
        _stop_recording(pool)
        nothing = torch.zeros((), device="cuda")
        _capture(nothing.zero_, None)
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
