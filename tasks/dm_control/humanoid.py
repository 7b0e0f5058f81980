"""The humanoid, as dm_control/suite defines it, and help with getting up. Runs in a worker."""

import math
from typing import Any, ClassVar

import numpy as np
import torch

from mjfleet.env import next_levels

from .config import HumanoidConfig
from .suite import SuiteEnv, tolerance

LIMBS = "hand", "foot"
LEVELS = 6
"""Of the curriculum. The highest is the suite's task; on the lowest, there is most help."""
LOW, HIGH = 0.1, 0.3
"""Means of the reward for standing below and above which the next episode's level is another."""
HEIGHT_REWARD = 0.3
"""Reward, on the lowest level, for a head as high as the task demands."""
HEAD_HEIGHT = 1.4
"""From which on a humanoid stands, m."""


class Humanoid(SuiteEnv[HumanoidConfig]):
    """21 actions: torques at the joints of abdomen, legs and arms.

    A humanoid that lies on the ground earns nothing, whatever it does there. With the curriculum,
    in training, its motors are stronger (up to twice) after an episode that it spent on the ground,
    and raising the head is rewarded. Both become less with each episode in which it stood. Tao et
    al. 2022 (arXiv:2205.00307) found that stronger torques make getting up learnable.
    """

    domain: ClassVar[str] = "humanoid"
    num_starts: ClassVar[int] = 4096

    def setup(self) -> None:
        super().setup()
        model = self.sim.model
        self.level = torch.full_like(self.episode_length_buf, LEVELS - 1)
        self.stood = torch.zeros(self.num_envs, device=self.device)
        """Sum of the reward for standing, whether it moves or not, over this episode."""
        self.steps = torch.zeros_like(self.stood)
        """Steps of this episode: of the first one in training, only the last."""
        dofs = model.jnt_dofadr[model.actuator_trnid[:, 0]]
        assert np.array_equal(np.sort(dofs), np.arange(6, model.nv))
        self.motor = torch.from_numpy(np.argsort(dofs)).to(self.device)
        """Number of each joint's motor, in the order of the joints."""
        self.gear = torch.from_numpy(model.actuator_gear[dofs.argsort(), 0]).to(self.sim.ctrl)

    def reset_worlds(self, mask: torch.Tensor) -> None:
        super().reset_worlds(mask)
        if self.cfg.curriculum:
            mean = self.stood / self.steps.clamp(min=1.0)
            counts = mask & (self.steps >= self.max_episode_length / 2)
            up = counts & (mean > HIGH) & (self.level < LEVELS - 1)
            down = counts & (mean < LOW)
            self.level = next_levels(self, self.level, up, down, LEVELS)
            self.stood.masked_fill_(mask, 0.0)
            self.steps.masked_fill_(mask, 0.0)

    def levels_to_evaluate(self, count: int) -> range:
        """Evaluate without help."""
        return range(count - 1, count)

    def apply(self, action: torch.Tensor) -> None:
        super().apply(action)
        if self.cfg.curriculum:
            torques = self._help().unsqueeze(1) * self.gear
            self.sim.qfrc_applied[:, 6:] = torques * self.sim.ctrl.index_select(1, self.motor)

    def parts(self) -> dict[str, torch.Tensor]:
        sim, model = self.sim, self.sim.model
        torso = model.body("torso").id
        frame = sim.xmat[:, torso].view(-1, 3, 3)
        limbs = [model.body(f"{side}_{end}").id for side in ("left", "right") for end in LIMBS]
        ways = torch.stack([sim.xpos[:, limb] - sim.xpos[:, torso] for limb in limbs], dim=1)
        return {
            "joint_angles": sim.qpos[:, 7:],
            "head_height": self._head_height().unsqueeze(1),
            "extremities": (ways @ frame).flatten(1),
            "torso_vertical": self.axes("torso", "zx", "zy", "zz"),
            "com_velocity": sim.sensor("torso_subtreelinvel"),
            "velocity": sim.qvel,
        }

    def rewards(self) -> dict[str, torch.Tensor]:
        """Reward a high head, an upright torso and little effort; then keeping still or moving.

        On lower levels, also reward the head's height alone.
        """
        standing = tolerance(self._head_height(), HEAD_HEIGHT, math.inf, margin=HEAD_HEIGHT / 4)
        upright = tolerance(self.axes("torso", "zz").squeeze(1), 0.9, math.inf, 1.9, "linear", 0.0)
        stands = self.small_control() * standing * upright
        velocity, speed = self.sim.sensor("torso_subtreelinvel")[:, :2], self.cfg.speed
        extra = 0.0
        if self.cfg.curriculum:
            self.stood += stands
            self.steps += 1.0
            height = (self._head_height() / HEAD_HEIGHT).clamp(max=1.0)
            extra = HEIGHT_REWARD * self._help() * height
        if not speed:
            return {"stand": stands * tolerance(velocity, margin=2.0).mean(dim=1) + extra}
        moves = tolerance(velocity.norm(dim=1), speed, math.inf, speed, "linear", 0.0)
        return {"move": stands * (5 * moves + 1) / 6 + extra}

    def metrics(self) -> dict[str, Any]:
        return {"level": self.level.float()} if self.cfg.curriculum else {}

    def _help(self) -> torch.Tensor:
        """Return the share of the help that each environment gets, `(num_envs,)`: 0 on the highest
        level, 1 on the lowest."""
        return 1.0 - self.level / (LEVELS - 1)

    def _head_height(self) -> torch.Tensor:
        """Return the head's height, `(num_envs,)`, m."""
        return self.sim.xpos[:, self.sim.model.body("head").id, 2]
