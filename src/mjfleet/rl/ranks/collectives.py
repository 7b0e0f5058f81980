"""Communication between the ranks of a run, and the time each spends in it. Runs in a worker."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

from mjfleet.rl.device.clock import DeviceClock

PIECE_BYTES = 2**20
"""Bytes of each rank that travel at a time."""


class Collectives:
    """Sums and gathers over all ranks. With one rank nothing is sent and nothing changes.

    What arrives is numbers, never pickled objects, which could run code.
    Tensors are on the backend's device: the GPU with NCCL, the CPU with gloo.
    """

    def __init__(self, rank: int = 0, world_size: int = 1, device: str = "cpu") -> None:
        self.rank = rank
        self.world_size = world_size
        self._device = device if world_size > 1 and dist.get_backend() == "nccl" else "cpu"
        self._clock = DeviceClock(self._device)

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Sum `tensor` over all ranks, in place. Every rank gets the same bits."""
        if self.world_size > 1:
            with self._timed():
                dist.all_reduce(tensor)

    def total(self, values: Sequence[float]) -> list[float]:
        """Return the sums of `values` over all ranks, in float64. Waits for the device."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self._device)
        self.all_reduce(tensor)
        return tensor.tolist()

    def mean(self, value: float) -> float:
        """Return the mean over all ranks. Waits for the device."""
        return self.total([value])[0] / self.world_size

    def all_gather(self, values: Sequence[float]) -> list[list[float]]:
        """Return the `values` of every rank, in float64. All ranks pass equally many."""
        if self.world_size == 1:
            return [list(map(float, values))]
        own = torch.tensor(values, dtype=torch.float64, device=self._device)
        gathered = own.new_empty(self.world_size, len(own))
        with self._timed():
            dist.all_gather(list(gathered.unbind()), own)
        return gathered.tolist()

    def all_gather_text(self, text: str | None) -> list[str | None]:
        """Return a text of every rank. This is slow, and not meant for the training loop."""
        data = json.dumps(text).encode()
        size = int(max(size for (size,) in self.all_gather([len(data)])))
        padded = self.all_gather(list(data.ljust(size)))
        return [json.loads(bytes(map(int, numbers))) for numbers in padded]

    def gather_bytes(self, data: bytes) -> list[bytearray] | None:
        """Return the data of every rank on rank 0, and None on the other ranks.

        It travels in pieces, so that the device holds PIECE_BYTES of each rank at a time.
        """
        if self.world_size == 1:
            return [bytearray(data)]
        sizes = [int(size) for (size,) in self.all_gather([len(data)])]
        gathered = [bytearray() for _ in sizes] if self.rank == 0 else None
        for start in range(0, max(sizes), PIECE_BYTES):
            part = bytearray(data[start : start + PIECE_BYTES].ljust(PIECE_BYTES))
            own = torch.frombuffer(part, dtype=torch.uint8).to(self._device)
            pieces = None if gathered is None else [torch.empty_like(own) for _ in sizes]
            with self._timed():
                dist.gather(own, pieces)
            for whole, piece, size in zip(gathered or (), pieces or (), sizes, strict=False):
                whole.extend(piece[: max(0, size - start)].cpu().numpy().tobytes())
        return gathered

    def take_seconds(self) -> float:
        """Return the seconds that this rank spent in collectives since the last call.

        They include the wait for the slowest rank.
        """
        return sum(self._clock.take_seconds()[::2])

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Time a collective; NCCL's is timed on the GPU, since the call only queues it there."""
        self._clock.mark()
        yield
        self._clock.mark()
