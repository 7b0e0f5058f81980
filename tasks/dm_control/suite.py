"""What all tasks of the DeepMind Control Suite share: models, starts, observations, tolerance."""

import math
import warnings
from abc import abstractmethod
from typing import Any, ClassVar, Literal, TypeVar

import mujoco
import numpy as np
import torch
from mujoco.batch import Batch

from mjfleet.env import Env
from mjfleet.utils.packages import find_package

from .config import SuiteConfig

C = TypeVar("C", bound=SuiteConfig)


class SuiteEnv(Env[C]):
    """Actions are the motors' controls in [-1, 1]; only time ends an episode."""

    domain: ClassVar[str]
    """Name of the model in dm_control/suite."""
    num_starts: ClassVar[int] = 0
    """Candidates of which `screen` keeps the starts; 0: each start is drawn anew."""

    @classmethod
    def make_model(cls, cfg: C) -> mujoco.MjModel:
        """Compile the model that dm_control's wheel holds, without importing dm_control."""
        file = find_package("dm_control") / "suite" / f"{cls.domain}.xml"
        spec = mujoco.MjSpec.from_file(str(file))
        cls.change_spec(spec, cfg)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*settotalmass")  # The cheetah's.
            return spec.compile()

    @classmethod
    def change_spec(cls, spec: mujoco.MjSpec, cfg: C) -> None:
        """Change what the suite's task changes in its model."""
        return

    def setup(self) -> None:
        low, high = self.ranges()
        self.low, self.high = (torch.from_numpy(ends).to(self.device) for ends in (low, high))
        self.starts = self._screened() if self.num_starts else None
        """Positions and velocities of the starts, `(starts, nq)` and `(starts, nv)`."""

    def ranges(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the lowest and highest number of each position at the start, `(nq,)` each.

        By default those of dm_control/suite/utils/randomizers.py: a joint's limits, any angle of a
        hinge without limits, and a quaternion of four numbers in [0, 1] that is then normalised.
        Other positions are the model's.
        """
        model = self.sim.model
        low, high = model.qpos0.copy(), model.qpos0.copy()
        for i in range(model.njnt):
            first = model.jnt_qposadr[i]
            if model.jnt_type[i] == mujoco.mjtJoint.mjJNT_FREE:
                low[first + 3 : first + 7], high[first + 3 : first + 7] = 0.0, 1.0
            elif model.jnt_limited[i]:
                low[first], high[first] = model.jnt_range[i]
            elif model.jnt_type[i] == mujoco.mjtJoint.mjJNT_HINGE:
                low[first], high[first] = -math.pi, math.pi
        return low, high

    def screen(self, batch: Batch) -> np.ndarray:
        """Return the numbers of the candidates that become starts: those without a contact."""
        contacts = batch.bind("ncon")
        batch.forward(stage=mujoco.mjtStage.mjSTAGE_POS.value)
        return np.flatnonzero(contacts == 0)

    def reset_worlds(self, mask: torch.Tensor) -> None:
        """Begin as the suite's task does."""
        world = mask.unsqueeze(1)
        if self.starts is None:
            qpos = self.low + (self.high - self.low) * self.uniform(len(self.low), 0.0, 1.0)
        else:
            positions, velocities = self.starts
            chosen = self.uniform(1, 0.0, len(positions)).squeeze(1).long()
            qpos, qvel = positions[chosen], velocities[chosen].to(self.sim.qvel)
            self.sim.qvel[:] = torch.where(world, qvel, self.sim.qvel)
        self.sim.qpos[:] = torch.where(world, qpos.to(self.sim.qpos), self.sim.qpos)

    def apply(self, action: torch.Tensor) -> None:
        self.sim.ctrl[:] = action.clamp(-1.0, 1.0)

    @abstractmethod
    def parts(self) -> dict[str, torch.Tensor]:
        """Return what dm_control's task observes, `(num_envs, size)` each, in its order."""

    def observe(self) -> dict[str, torch.Tensor]:
        state = torch.cat(tuple(self.parts().values()), dim=1)
        return {"actor": state, "critic": state}

    def deployment(self) -> dict[str, Any]:
        """Return the parts of an observation."""
        meaning = f"as in dm_control/suite/{self.domain}.py"
        parts = [
            {"name": name, "size": part.shape[1], "meaning": meaning}
            for name, part in self.parts().items()
        ]
        return {"observations": {"actor": parts}, "controls": "actions, within [-1, 1]"}

    def small_control(self) -> torch.Tensor:
        """Return the suite's factor for small controls, 0.8 to 1, `(num_envs,)`."""
        small = tolerance(self.sim.ctrl, margin=1.0, value_at_margin=0.0, sigmoid="quadratic")
        return (4 + small.mean(dim=1)) / 5

    def axes(self, body: str, *entries: str) -> torch.Tensor:
        """Return entries of a body's rotation matrix, such as `xz`, `(num_envs, entries)`."""
        columns = ["xyz".index(row) * 3 + "xyz".index(column) for row, column in entries]
        # Slices: a list of indices would be copied to a GPU in each step.
        matrix = self.sim.xmat[:, self.sim.model.body(body).id].view(self.num_envs, 9)
        return torch.cat([matrix[:, i : i + 1] for i in columns], dim=1)

    def _screened(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the starts that `screen` keeps of random candidates: the same in every run."""
        low, high = self.ranges()
        drawn = np.random.default_rng(0).uniform(low, high, (self.num_starts, len(low)))
        for i in np.flatnonzero(self.sim.model.jnt_type == mujoco.mjtJoint.mjJNT_FREE):
            first = self.sim.model.jnt_qposadr[i] + 3
            drawn[:, first : first + 4] /= np.linalg.norm(
                drawn[:, first : first + 4], axis=1, keepdims=True
            )
        batch = Batch(self.sim.model, nsim=self.num_starts, nthread=torch.get_num_threads())
        batch.bind("qpos")[:] = drawn
        kept = self.screen(batch)
        qpos, qvel = (torch.from_numpy(batch.bind(name)[kept]) for name in ("qpos", "qvel"))
        return qpos.to(self.device), qvel.to(self.device)


def tolerance(
    x: torch.Tensor,
    low: float = 0.0,
    high: float = 0.0,
    margin: float = 0.0,
    sigmoid: Literal["gaussian", "linear", "quadratic"] = "gaussian",
    value_at_margin: float = 0.1,
) -> torch.Tensor:
    """Return 1 from `low` to `high` and less outside: dm_control/utils/rewards.py.

    At a distance of `margin` from the nearer end it is `value_at_margin`. Without a margin it is 0
    outside.
    """
    away = (low - x).clamp(min=0.0) + (x - high).clamp(min=0.0)
    if margin == 0.0:
        return (away == 0.0).to(x)
    away = away / margin
    if sigmoid == "gaussian":
        return torch.exp(math.log(value_at_margin) * away.square())
    power = 1 if sigmoid == "linear" else 2
    return (1 - (1 - value_at_margin) * away**power).clamp(min=0.0)
