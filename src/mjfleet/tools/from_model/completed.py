"""What is known of a model that is being completed, and how it is said."""

from dataclasses import dataclass, field

import mujoco
import numpy as np

from mjfleet.legged.scene import HOME
from mjfleet.tools.from_model.robot import Robot


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

    def pose_of_file(self) -> np.ndarray | None:
        """Return the file's own pose: its keyframe `home`, or the first."""
        key = self.spec.key(HOME) or next(iter(self.spec.keys), None)
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
