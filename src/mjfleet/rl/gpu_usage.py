"""What NVML says of a worker's GPU. Runs in a worker, once per iteration."""

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pynvml
import torch

from mjfleet.loggers.iteration_metrics import IterationMetrics

BUSY_PERCENT = 60.0  # Mean utilization below which GPUs are mostly idle.
LOOKED_AT = 10  # Number of iterations over which the mean is taken.
MUCH = 0.25  # Share of the time from which waiting counts as the cause.

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class GpuUsage:
    """A GPU's readings; NaN where NVML does not know."""

    memory: float  # GiB in use, by all programs.
    utilization: float  # Per cent of NVML's newest interval in which a kernel ran.
    temperature: float  # Degrees Celsius.


def read_usage(device: str) -> GpuUsage | None:
    """Read the usage of a GPU; None for the CPU."""
    if device == "cpu":
        return None
    handle = _handle(str(torch.cuda.get_device_properties(device).uuid))
    return GpuUsage(
        memory=_reading(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used / 2**30),
        utilization=_reading(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        temperature=_reading(lambda: pynvml.nvmlDeviceGetTemperature(handle, 0)),
    )


@lru_cache
def _handle(uuid: str) -> Any:
    """Return NVML's handle of a GPU; None in a container without NVML."""
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except pynvml.NVMLError:
        return None


def _reading(read: Callable[[], Any]) -> float:
    """Return a reading; NaN for one that this GPU lacks, as a MIG device does."""
    try:
        return float(read())
    except pynvml.NVMLError:
        return math.nan


def usage_columns(usages: Sequence[GpuUsage | None]) -> dict[str, float | None]:
    """Return the columns: the largest memory and temperature, and the mean utilization."""
    if not any(usages):
        return {}

    def known(name: str) -> list[float]:
        values = [getattr(usage, name) for usage in usages if usage]
        return [value for value in values if not math.isnan(value)]

    utilizations = known("utilization")
    return {
        "gpu_memory": max(known("memory"), default=None),
        "gpu_utilization": sum(utilizations) / len(utilizations) if utilizations else None,
        "gpu_temperature": max(known("temperature"), default=None),
    }


class IdleGpuWarning:
    """Warns once of GPUs that are mostly idle over ten iterations, and names the likely cause."""

    def __init__(self) -> None:
        self._newest: deque[tuple[IterationMetrics, float]] = deque(maxlen=LOOKED_AT)
        self._steps: int | None = None
        self._is_over = False

    def look(self, metrics: IterationMetrics) -> None:
        """Look at an iteration. The first one is left out: it compiles and captures."""
        before, self._steps = self._steps, metrics.total_steps
        if self._is_over or before is None or metrics.gpu.get("gpu_utilization") is None:
            return
        seconds = (metrics.total_steps - before) / metrics.global_steps_per_second
        self._newest.append((metrics, seconds))
        busy = sum(m.gpu["gpu_utilization"] or 0.0 for m, _ in self._newest) / LOOKED_AT
        if len(self._newest) == LOOKED_AT and busy < BUSY_PERCENT:
            self._is_over = True
            logger.warning(
                "warning: over %s iterations the GPUs were busy for %.0f%% of the time. %s",
                *(LOOKED_AT, busy, self._cause()),
            )

    def _cause(self) -> str:
        """Return what most of the time goes to, and what to change."""
        rows = [metrics for metrics, _ in self._newest]
        whole = sum(seconds for _, seconds in self._newest)

        def share(column: str) -> float:
            return sum(getattr(metrics, column) for metrics in rows) / whole

        slowest = max(rows, key=lambda m: m.wait_seconds).slowest_rank
        collect, learn = share("collect_seconds"), share("learn_seconds")
        waits = {
            f"the other workers wait for rank {slowest}: see what else uses its GPU and "
            "processors, or give all workers equal ones": share("wait_seconds"),
            "workers add up gradients: `mjfleet doctor` measures how fast they are connected, and "
            "more --env.num-envs make it rarer": share("collective_seconds"),
            "nothing is collected or learned: evaluate (--eval-interval), record videos "
            "and save checkpoints less often": max(0.0, 1.0 - collect - learn),
        }
        cause, most = max(waits.items(), key=lambda item: item[1])
        if most >= MUCH:
            return f"For {most:.0%} of it, {cause}."
        if collect >= learn:
            return (
                f"Collecting takes {collect:.0%} of it: there are too few environments to fill a "
                "GPU. `mjfleet tune` measures which number trains fastest."
            )
        return (
            f"Learning takes {learn:.0%} of it: minibatches are too small to fill a GPU. Set fewer "
            "--agent.algorithm.num-mini-batches, or more --env.num-envs."
        )
