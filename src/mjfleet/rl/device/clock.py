"""Times parts of an iteration on a device that works behind the host. Runs in a worker."""

import time
from itertools import pairwise
from typing import Any

import torch


class DeviceClock:
    """Marks moments: on a GPU when it gets there, on a CPU now."""

    def __init__(self, device: str) -> None:
        self._is_gpu = torch.device(device).type == "cuda"
        self._marks: list[Any] = []

    def mark(self) -> None:
        """Mark a moment. Waits for nothing."""
        if self._is_gpu:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def take_seconds(self) -> list[float]:
        """Return the seconds from each mark to the next, and forget all. Waits for the last one."""
        marks, self._marks = self._marks, []
        if not (self._is_gpu and marks):
            return [after - before for before, after in pairwise(marks)]
        marks[-1].synchronize()
        return [before.elapsed_time(after) / 1000 for before, after in pairwise(marks)]
