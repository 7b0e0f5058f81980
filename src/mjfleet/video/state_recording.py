"""The states of some environments, from which another process draws a video.

Recorded by rank 0 or `play`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np

if TYPE_CHECKING:
    from mjfleet.env import Env

NUM_RECORDED = 4  # Environments; of fewer than that, one is recorded.
MAX_RATE = 30  # Pictures per second, about: without a GPU, each takes a while.
ARROW = "arrow/"  # Before the name of an arrow among the steps.


@dataclass(frozen=True)
class StateRecording:
    """The states of some environments at the beginning of each of some steps."""

    title: str
    step_dt: float  # Simulated seconds of a step.
    model: bytes  # The content of an .mjb file.
    steps: Mapping[str, np.ndarray]
    """`(steps, envs, ...)` each: "time" (s, since the reset), "reward", "qpos", "mocap_pos" and
    "mocap_quat" where there are such bodies; "arrow/<name>" `(steps, envs, 2, 3)`: start and
    vector, m."""

    @property
    def shown(self) -> range:
        """The steps that have a picture in a video in real time."""
        every = max(1, round(1 / (MAX_RATE * self.step_dt)))
        return range(0, len(self.steps["time"]), every)


class StateRecorder:
    """Makes recordings of about `seconds` from the steps that the environment's recorder keeps."""

    def __init__(self, env: "Env[Any]", seconds: float) -> None:
        assert env.recorder is not None
        self._env, self._source = env, env.recorder
        self.length = math.ceil(seconds / (env.step_dt * self._source.num_steps))
        """How many calls of `take` make a recording."""
        self._source.shown = NUM_RECORDED if env.num_envs >= NUM_RECORDED else 1
        self._parts: list[dict[str, np.ndarray]] = []

    @property
    def is_complete(self) -> bool:
        return len(self._parts) == self.length

    def take(self) -> None:
        """Add all kept steps, unless the recording is complete; waits for the device."""
        if self.is_complete:
            return
        kept = self._source.tensors
        fields = ("time", "qpos", "mocap_pos", "mocap_quat")
        found = {name: kept[f"start/{name}"] for name in fields if f"start/{name}" in kept}
        found |= {ARROW + name: tensor for name, tensor in self._source.arrows.items()}
        found |= {"reward": kept["terms"].sum(dim=2)}
        envs = self._source.shown
        self._parts.append({name: np.array(value[:, :envs].cpu()) for name, value in found.items()})

    def finish(self, title: str) -> StateRecording:
        """Return what was taken since the last call, in order."""
        parts, self._parts = self._parts, []
        steps = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return StateRecording(title, self._env.step_dt, pack_model(self._env.sim.model), steps)


def pack_model(model: mujoco.MjModel) -> bytes:
    """Return a compiled model as the content of an .mjb file, for the same version of MuJoCo."""
    binary = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, binary)
    return binary.tobytes()
