"""Finds the lines of a task that change something which torch's operations do not show."""

import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import numpy as np
import torch

from mjfleet.env.env_state import equal
from mjfleet.tools.check_task.finding import Place


class LineWatch:
    """Compares some values before and after each line of a task's code, while it is entered.

    Python's tracing calls it for each line, which takes some microseconds.
    """

    def __init__(self, folder: str, probes: Mapping[str, Callable[[], Any]]) -> None:
        """Watch the code in `folder` for changes of what `probes` return, by name."""
        self.changes: dict[str, Place] = {}  # The first line that changed each.
        self.counts: Counter[Place] = Counter()  # How often each line began.
        self._folder, self._probes = folder, probes
        self._values: dict[str, Any] = {}
        self._lines: list[Place] = []  # The line that each entered function of the task is in.

    def __enter__(self) -> "LineWatch":
        self._values = {name: probe() for name, probe in self._probes.items()}
        self._lines = []
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self._folder):
            return None
        self._compare()
        if event == "call":
            self._lines.append(Place.of(frame))
        elif event == "line":
            self._lines[-1] = Place.of(frame)
            self.counts[self._lines[-1]] += 1
        elif event == "return":
            self._lines.pop()
        return self._trace

    def _compare(self) -> None:
        for name, probe in self._probes.items():
            value = probe()
            if not equal(value, self._values[name]):
                self._values[name] = value
                if self._lines:
                    self.changes.setdefault(name, self._lines[-1])


def host_generators() -> dict[str, Callable[[], Any]]:
    """Return probes of the global random generators of Python, NumPy and torch."""

    def of_numpy() -> int:
        state: Any = np.random.get_state()
        return hash((state[1].tobytes(), state[2]))

    return {
        "Python's": lambda: hash(random.getstate()),
        "NumPy's": of_numpy,
        "torch's": lambda: hash(torch.get_rng_state().numpy().tobytes()),
    }
