"""Hopper, walker and cheetah, as dm_control/suite defines them."""

import math
from typing import ClassVar

import numpy as np
import torch
from mujoco.batch import Batch

from .config import SpeedConfig, SuiteConfig
from .suite import SuiteEnv, tolerance


class Hopper(SuiteEnv[SpeedConfig]):
    """Four actions: torques at waist, hip, knee and ankle."""

    domain: ClassVar[str] = "hopper"

    def parts(self) -> dict[str, torch.Tensor]:
        touch = torch.cat((self.sim.sensor("touch_toe"), self.sim.sensor("touch_heel")), dim=1)
        return {
            "position": self.sim.qpos[:, 1:],
            "velocity": self.sim.qvel,
            "touch": touch.log1p(),
        }

    def rewards(self) -> dict[str, torch.Tensor]:
        """Reward a torso 0.6 m above the foot that moves forward, or is held with little effort."""
        bodies, model = self.sim.xipos, self.sim.model
        height = bodies[:, model.body("torso").id, 2] - bodies[:, model.body("foot").id, 2]
        standing = tolerance(height, 0.6, 2.0)
        speed = self.cfg.speed
        if not speed:
            return {"stand": standing * self.small_control()}
        forward = self.sim.sensor("torso_subtreelinvel")[:, 0]
        return {"hop": standing * tolerance(forward, speed, math.inf, speed / 2, "linear", 0.5)}


class Walker(SuiteEnv[SpeedConfig]):
    """Six actions: torques at hip, knee and ankle of both legs."""

    domain: ClassVar[str] = "walker"

    def parts(self) -> dict[str, torch.Tensor]:
        rows = self.sim.xmat[:, 1:].reshape(self.num_envs, -1, 9)
        return {
            "orientations": rows[:, :, 0:3:2].flatten(1),  # xx and xz of each body.
            "height": self._height().unsqueeze(1),
            "velocity": self.sim.qvel,
        }

    def rewards(self) -> dict[str, torch.Tensor]:
        """Reward a torso that is high and upright, and moves forward."""
        standing = tolerance(self._height(), 1.2, math.inf, margin=0.6)
        upright = (1 + self.axes("torso", "zz").squeeze(1)) / 2
        stands = (3 * standing + upright) / 4
        speed = self.cfg.speed
        if not speed:
            return {"stand": stands}
        forward = self.sim.sensor("torso_subtreelinvel")[:, 0]
        moves = tolerance(forward, speed, math.inf, speed / 2, "linear", 0.5)
        return {"move": stands * (5 * moves + 1) / 6}

    def _height(self) -> torch.Tensor:
        """Return the torso's height, `(num_envs,)`, m."""
        return self.sim.xpos[:, self.sim.model.body("torso").id, 2]


class Cheetah(SuiteEnv[SuiteConfig]):
    """Six actions: torques at the three joints of hind and front leg."""

    domain: ClassVar[str] = "cheetah"
    num_starts: ClassVar[int] = 1024

    def ranges(self) -> tuple[np.ndarray, np.ndarray]:
        """Return those of the joints with limits; the torso is upright."""
        low, high = super().ranges()
        free = self.sim.model.jnt_limited == 0
        low[free] = high[free] = self.sim.model.qpos0[free]
        return low, high

    def screen(self, batch: Batch) -> np.ndarray:
        """Let all candidates fall and come to rest for two seconds."""
        batch.step(nstep=200)
        return np.arange(self.num_starts)

    def parts(self) -> dict[str, torch.Tensor]:
        return {"position": self.sim.qpos[:, 1:], "velocity": self.sim.qvel}

    def rewards(self) -> dict[str, torch.Tensor]:
        """Reward speed, up to 10 m/s."""
        forward = self.sim.sensor("torso_subtreelinvel")[:, 0]
        return {"speed": tolerance(forward, 10.0, math.inf, 10.0, "linear", 0.0)}
