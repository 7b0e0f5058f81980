"""What NVML says of a worker's GPU. Runs in a worker, once per iteration."""

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any

import pynvml
import torch

from mjfleet.loggers.logger import Row

BUSY_PERCENT = 60.0  # Mean utilization below which GPUs are mostly idle.
LOOKED_AT = 10  # Number of iterations over which the mean is taken.
MUCH = 0.25  # Share of the time from which waiting counts as the cause.

logger = logging.getLogger(__name__)


def read_usage(device: str) -> dict[str, float]:
    """Return memory (GiB in use, by all programs), utilization (per cent of NVML's newest interval
    in which a kernel ran) and temperature (degrees Celsius); nothing for the CPU.

    NaN: NVML does not know.
    """
    if device == "cpu":
        return {}
    handle = _handle(str(torch.cuda.get_device_properties(device).uuid))
    return {
        "gpu_memory": _reading(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used / 2**30),
        "gpu_utilization": _reading(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        "gpu_temperature": _reading(lambda: pynvml.nvmlDeviceGetTemperature(handle, 0)),
    }


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


def usage_columns(ranks: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
    """Return the largest memory and temperature, and the mean utilization, of all that are known.

    `ranks` are the values of each rank, among them those of `read_usage`.
    """
    columns = {"gpu_memory": max, "gpu_utilization": fmean, "gpu_temperature": max}
    found = {}
    for name, join in columns.items():
        if name in ranks[0]:
            known = [values[name] for values in ranks if not math.isnan(values[name])]
            found[name] = join(known) if known else None
    return found


class IdleGpuWarning:
    """Warns once of GPUs that are mostly idle over ten iterations, and names the likely cause."""

    def __init__(self) -> None:
        self._newest: deque[dict[str, float]] = deque(maxlen=LOOKED_AT)
        self._steps: float | None = None
        self._is_over = False

    def look(self, row: Row) -> None:
        """Look at an iteration. The first one is left out: it compiles and captures."""
        known = {name: value for name, value in row.items() if value is not None}
        before, self._steps = self._steps, known["total_steps"]
        if self._is_over or before is None or "gpu_utilization" not in known:
            return
        seconds = (self._steps - before) / known["global_steps_per_second"]
        self._newest.append(known | {"seconds": seconds})
        busy = self._total("gpu_utilization") / LOOKED_AT
        if len(self._newest) == LOOKED_AT and busy < BUSY_PERCENT:
            self._is_over = True
            logger.warning(
                "warning: over %s iterations the GPUs were busy for %.0f%% of the time. %s",
                *(LOOKED_AT, busy, self._cause()),
            )

    def _total(self, column: str) -> float:
        return sum(row[column] for row in self._newest)

    def _cause(self) -> str:
        """Return what most of the time goes to, and what to change."""

        def share(column: str) -> float:
            return self._total(column) / self._total("seconds")

        slowest = int(max(self._newest, key=lambda row: row["wait_seconds"])["slowest_rank"])
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
