"""The states of some environments, from which another process draws a video."""

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
SEEN = "what a camera sees"
GHOST = "ghost"  # The name of the second robot's positions among the steps.
ARROW = "arrow/"  # Before the name of an arrow among the steps.


@dataclass(frozen=True)
class StateRecording:
    """What a video shows: a picture for each of some steps of some environments."""

    title: str
    rate: float  # Pictures per second.
    model: bytes  # The content of an .mjb file.
    steps: Mapping[str, np.ndarray]
    """`(pictures, envs, ...)` each: "time" (s, since the reset), "qpos", "mocap_pos", "mocap_quat"
    where there are such bodies; "arrow/<name>" `(pictures, envs, 2, 3)`, or with n arrows
    `(pictures, envs, 2, n, 3)`: start and vector, m; "ghost", as "qpos", if there is one; SEEN
    `(pictures, envs, height, width, 3)`."""


class StateRecorder:
    """Makes recordings of about `seconds` from the steps that the environment's recorder keeps."""

    def __init__(self, env: "Env[Any]", seconds: float, camera: Any = None) -> None:
        """Begin. `camera`: a Camera of the task, whose pictures are taken too, once a call."""
        assert env.recorder is not None
        self._env, self._source = env, env.recorder
        self.length = math.ceil(seconds / (env.step_dt * self._source.num_steps))
        """How many calls of `take` make a recording."""
        self._source.shown = NUM_RECORDED if env.num_envs >= NUM_RECORDED else 1
        self._parts: list[dict[str, np.ndarray]] = []
        self._camera, self._seen = camera, camera and camera.pictures().cpu()

    @property
    def is_complete(self) -> bool:
        return len(self._parts) == self.length

    def take(self) -> None:
        """Add all kept steps, unless the recording is complete; waits for the device."""
        if self.is_complete:
            return
        kept, envs = self._source.tensors, self._source.shown
        fields = ("time", "qpos", "mocap_pos", "mocap_quat")
        found = {name: kept[f"start/{name}"] for name in fields if f"start/{name}" in kept}
        found |= self._source.ghosts
        found |= {ARROW + name: tensor for name, tensor in self._source.arrows.items()}
        shown = {name: value[:, :envs].cpu().numpy().copy() for name, value in found.items()}
        if self._camera:  # A step starts from what was seen before it.
            shown[SEEN] = self._seen[None, :envs].numpy().copy()
            self._seen = self._camera.pictures().cpu()
        self._parts.append(shown)

    def finish(self, title: str) -> StateRecording:
        """Return what was taken since the last call, in order."""
        parts, self._parts = self._parts, []
        every = max(1, round(1 / (MAX_RATE * self._env.step_dt)))  # Steps for one picture.
        steps = {name: np.concatenate([part[name] for part in parts])[::every] for name in parts[0]}
        model = pack_model(self._env.sim.model)
        return StateRecording(title, 1 / (every * self._env.step_dt), model, steps)


def pack_model(model: mujoco.MjModel) -> bytes:
    """Return a compiled model as the content of an .mjb file, for the same version of MuJoCo."""
    binary = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, binary)
    return binary.tobytes()
