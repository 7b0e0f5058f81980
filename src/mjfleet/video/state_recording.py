"""The states of some environments, from which a video is drawn, and their file.

Recorded by rank 0 or `play`, read by the process that draws.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

ARROW = "arrow/"  # Before the name of an arrow among the steps.


@dataclass(frozen=True, kw_only=True)
class StateRecording:
    """The states of some environments at the beginning of each of some steps."""

    title: str
    step_dt: float  # Simulated seconds of a step.
    model: np.ndarray  # The MjModel in MuJoCo's binary form, as bytes.
    steps: Mapping[str, np.ndarray]
    """`(steps, envs, ...)` each: "time" (s, since the reset), "reward", "qpos", "mocap_pos" and
    "mocap_quat" where there are such bodies; "arrow/<name>" `(steps, envs, 2, 3)`: start and
    vector, m."""

    def save(self, file: BinaryIO) -> None:
        """Write the recording in NumPy's format npz."""
        steps: Any = self.steps
        np.savez(file, title=self.title, step_dt=self.step_dt, model=self.model, **steps)

    @classmethod
    def load(cls, file: BinaryIO) -> "StateRecording":
        arrays = dict(np.load(file))
        title, step_dt, model = (arrays.pop(name) for name in ("title", "step_dt", "model"))
        return cls(title=str(title), step_dt=float(step_dt), model=model, steps=arrays)
