"""What is said of GPUs that are mostly idle."""

import math
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch

from mjfleet.loggers.logger import Row
from mjfleet.rl.gpu_usage import LOOKED_AT, IdleGpuWarning, read_usage

STEPS = 1000
READINGS = {
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=2**31),
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=40),
    "nvmlDeviceGetTemperature": 50,
}
"""What NVML's functions return."""
ROW: dict[str, float | int | None] = {
    "total_steps": STEPS, "global_steps_per_second": STEPS, "mean_return": None,
    "collect_seconds": 0.6, "learn_seconds": 0.4, "slowest_rank": 1, "wait_seconds": 0.0,
    "collective_seconds": 0.0, "gpu_utilization": 59.0,
}  # fmt: skip


def look(row: Row, iterations: int = 2 * LOOKED_AT) -> None:
    warning = IdleGpuWarning()
    for iteration in range(1, iterations + 1):
        warning.look({**row, "total_steps": iteration * STEPS})


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (ROW, "Collecting takes 60% of it"),
        (ROW | {"collect_seconds": 0.3, "learn_seconds": 0.7}, "Learning takes 70% of it"),
        (ROW | {"wait_seconds": 0.3}, "For 30% of it, the other workers wait for rank 1"),
        (ROW | {"collective_seconds": 0.3}, "For 30% of it, workers add up gradients"),
        (ROW | {"learn_seconds": 0.1}, "For 30% of it, nothing"),
    ],
)
def test_idle_gpus_are_one_warning_with_the_likely_cause(
    row: Row, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    look(row)
    (record,) = caplog.records
    assert "the GPUs were busy for 59% of the time" in record.message
    assert words in record.message


@pytest.mark.parametrize("utilization", [60.0, None])
def test_busy_gpus_and_unknown_ones_are_no_warning(
    utilization: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    look(ROW | {"gpu_utilization": utilization})
    look(ROW, iterations=LOOKED_AT)
    assert not caplog.records


@pytest.mark.parametrize("lacks", [None, *READINGS])
def test_each_reading_that_nvml_has_is_taken(monkeypatch: pytest.MonkeyPatch, lacks: str) -> None:
    """No GPU is here: NVML's functions, and the UUID that torch tells, are stand-ins."""
    begun: list[None] = []

    def fail(*_: Any) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    for name, value in READINGS.items():
        monkeypatch.setattr(pynvml, name, fail if name == lacks else lambda *_, value=value: value)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: begun.append(None))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    properties = SimpleNamespace(uuid=f"without {lacks}")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    found = [read_usage("cuda:0") for _ in range(2)]
    numbers = dict(zip(READINGS, (2.0, 40.0, 50.0), strict=True))
    expected = [math.nan if name == lacks else number for name, number in numbers.items()]
    assert [str(list(usage.values())) for usage in found] == 2 * [str(expected)]
    assert len(begun) == 1
