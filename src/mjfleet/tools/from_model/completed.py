"""What is known of a model that is being completed, and how it is said."""

from dataclasses import dataclass, field

import mujoco
import numpy as np

from mjfleet.legged.scene import HOME
from mjfleet.tools.from_model.robot import Robot

USUAL = (HOME, "stand", "standing", "neutral", "default", "init")
"""Names of keyframes with the pose in which a robot begins."""


@dataclass
class Completed:
    """A model that is complete, and what its reader must know."""

    spec: mujoco.MjSpec
    robot: Robot
    """In the pose `home`."""
    added: list[str] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    feet: list[str] = field(default_factory=list)
    """Names of geoms or bodies, for mjfleet.legged; none for another robot."""
    tool: str = ""
    """The site that an arm brings to a target."""

    @property
    def base(self) -> str:
        return self.robot.model.body(self.robot.root).name

    def key_of_file(self) -> mujoco.MjsKey | None:
        """Return the file's own keyframe to begin in: `home`, a usual name, or the only one."""
        keys = {key.name: key for key in self.spec.keys}
        usual = next((keys[name] for name in USUAL if name in keys), None)
        return usual or (self.spec.keys[0] if len(keys) == 1 else None)

    def pose_of_file(self) -> np.ndarray | None:
        """Return the pose of that keyframe."""
        key = self.key_of_file()
        return np.array(key.qpos) if key and len(key.qpos) else None


def short(value: float) -> float:
    """Return a number with three digits."""
    return float(f"{value:.3g}")


def count(number: int, what: str) -> str:
    """Return a number with a noun."""
    return f"{number} {what}{'s' * (number != 1)}"


def grouped(values: dict[str, float]) -> str:
    """Return names by their value, those of the same value together."""
    names: dict[str, list[str]] = {}
    for name, value in values.items():
        names.setdefault(f"{value:.3g}", []).append(f"`{name}`")
    return "; ".join(f"{value} of {', '.join(each)}" for value, each in names.items())
