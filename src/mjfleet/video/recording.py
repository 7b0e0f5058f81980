"""What a few worlds did for some seconds, from which a video is drawn. Rank 0 records it.

States are recorded, not pictures: another process draws them, see mjfleet.video.draw.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import mujoco
import numpy as np

if TYPE_CHECKING:
    import torch

    from mjfleet.env import Env
    from mjfleet.env.step_recorder import StepRecorder

WORLDS = 4
"""How many worlds are recorded; of an environment with fewer, one."""
ARROW = "arrow/"


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The first worlds of an environment over some steps, each as it was when the step began."""

    title: str
    step_dt: float
    """Simulated seconds of a step."""
    model: np.ndarray
    """The MjModel in MuJoCo's binary form, as bytes."""
    steps: Mapping[str, np.ndarray]
    """`(steps, worlds, ...)` each: "time" (s, since the reset), "reward", "qpos", "mocap_pos" and
    "mocap_quat" where there are such bodies; "arrow/<name>" `(steps, worlds, 2, 3)`: where it
    starts and what it points along, m."""

    def save(self, file: BinaryIO) -> None:
        """Write it in NumPy's format npz."""
        arrays: dict[str, Any] = {**vars(self), **self.steps}
        del arrays["steps"]
        np.savez(file, **arrays)

    @classmethod
    def load(cls, file: BinaryIO) -> "Recording":
        """Read what `save` wrote."""
        arrays = dict(np.load(file))
        title, step_dt, model = (arrays.pop(name) for name in ("title", "step_dt", "model"))
        return cls(title=str(title), step_dt=float(step_dt), model=model, steps=arrays)


class Recorder:
    """Gathers recordings from an environment's history.

    Args:
        env: whose first worlds are recorded.
        history: what the environment records its steps in.
        seconds: how long a recording is, simulated, about.
    """

    def __init__(self, env: "Env[Any]", history: "StepRecorder", seconds: float) -> None:
        self._env = env
        self._history = history
        self.length = math.ceil(seconds / (env.step_dt * history.num_steps))
        """How often `take` adds to a recording."""
        history.shown = WORLDS if env.num_envs >= WORLDS else 1
        self._parts: list[dict[str, np.ndarray]] = []

    def take(self) -> None:
        """Add all steps that the history holds, where any are missing; waits for the device."""
        if len(self._parts) == self.length:
            return
        tensors = self._history.tensors
        fields = ("time", "qpos", "mocap_pos", "mocap_quat")
        found = {name: tensors[f"start/{name}"] for name in fields if f"start/{name}" in tensors}
        found |= {ARROW + name: tensor for name, tensor in self._history.arrows.items()}
        found |= {"reward": tensors["terms"].sum(dim=2)}
        self._parts.append({name: self._copy(tensor) for name, tensor in found.items()})

    def finish(self, title: str) -> Recording:
        """All that has been taken since the last time, in order."""
        parts, self._parts = self._parts, []
        model = self._env.sim.model
        binary = np.empty(mujoco.mj_sizeModel(model), np.uint8)
        mujoco.mj_saveModel(model, None, binary)
        return Recording(
            title=title,
            step_dt=self._env.step_dt,
            model=binary,
            steps={name: np.concatenate([part[name] for part in parts]) for name in parts[0]},
        )

    def _copy(self, steps: "torch.Tensor") -> np.ndarray:
        """The recorded worlds of `(steps, num_envs, ...)`, in memory that nobody writes to."""
        return np.array(steps[:, : self._history.shown].cpu())
