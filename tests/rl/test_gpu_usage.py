"""What NVML says of a GPU."""

import math
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch

from mjfleet.rl.gpu_usage import read_usage

READINGS = {
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=2**31),
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=40),
    "nvmlDeviceGetTemperature": 50,
}
"""What NVML's functions return."""


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
