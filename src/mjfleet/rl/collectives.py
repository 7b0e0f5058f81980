"""What the workers of a run do together, and how long each waits for the others in it."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist


class Collectives:
    """Sums and gathers over all ranks; with one rank, nothing is sent and nothing changes.

    Tensors live on the backend's own device: NCCL reduces on the GPU, gloo gathers on the CPU.
    """

    def __init__(self, rank: int = 0, world_size: int = 1, device: str = "cpu") -> None:
        self.rank = rank
        self.world_size = world_size
        self._on_gpu = world_size > 1 and dist.get_backend() == "nccl"
        self._device = torch.device(device if self._on_gpu else "cpu")
        self._stopwatch = _Stopwatch(self._on_gpu)

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Sum `tensor` over all ranks, in place; every rank ends with the same bits."""
        if self.world_size > 1:
            with self._stopwatch.running():
                dist.all_reduce(tensor)

    def total(self, values: Sequence[float]) -> list[float]:
        """The sums of `values` over all ranks, in float64; waits for the device."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self._device)
        self.all_reduce(tensor)
        return tensor.tolist()

    def all_gather(self, values: Sequence[float]) -> list[list[float]]:
        """The `values` of every rank, in the order of ranks, in float64; equally many of each."""
        own = torch.tensor(values, dtype=torch.float64, device=self._device)
        if self.world_size == 1:
            return [own.tolist()]
        everyone = own.new_empty(self.world_size, len(own))
        with self._stopwatch.running():
            dist.all_gather(list(everyone.unbind()), own)
        return everyone.tolist()

    def all_gather_text(self, text: str | None) -> list[str | None]:
        """A text of every rank, in the order of ranks; for the end of a run, since it is slow."""
        everyone: list[str | None] = [text] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(everyone, text)
        return everyone

    def gather_bytes(self, data: bytes) -> list[bytes] | None:
        """The data of every rank, in the order of ranks, on rank 0; None on the others."""
        everyone = [data] * self.world_size if self.rank == 0 else None
        if self.world_size > 1:
            with self._stopwatch.running():
                dist.gather_object(data, everyone)
        return everyone

    def take_seconds(self) -> float:
        """Seconds that this rank spent in collectives since the last call, waiting included."""
        return self._stopwatch.take()


class _Stopwatch:
    """Adds up the time between the begin and the end of blocks, as the backend's device has it.

    On NCCL a collective only joins the GPU's queue: what it costs is the time between an event
    before it and one after it, which includes the wait for the slowest rank.
    """

    def __init__(self, on_gpu: bool) -> None:
        self._on_gpu = on_gpu
        self._seconds = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        if self._on_gpu:
            pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            pair[0].record()
            yield
            pair[1].record()
            self._events.append(pair)
        else:
            start = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - start

    def take(self) -> float:
        for start, end in self._events:
            end.synchronize()
            self._seconds += start.elapsed_time(end) / 1000
        self._events.clear()
        seconds, self._seconds = self._seconds, 0.0
        return seconds
