"""The humanoid, as dm_control/suite defines it, and help with getting up. Runs in a worker."""

import math
from typing import Any, ClassVar

import torch

from mjfleet.env import Levels

from .config import HumanoidConfig
from .suite import SuiteEnv, tolerance

LIMBS = "hand", "foot"
LEVELS = 6
"""Number of levels. The highest is the suite's task; on the lowest, there is most help."""
LOW, HIGH = 0.1, 0.3
"""A mean reward for standing below LOW lowers an environment's level; one above HIGH raises it."""
HEIGHT_REWARD = 0.3
"""Reward, on the lowest level, for a head as high as the task demands."""
HEAD_HEIGHT = 1.4
"""Height of the head from which on a humanoid stands, m."""


class Humanoid(SuiteEnv[HumanoidConfig]):
    """21 actions: torques at the joints of abdomen, legs and arms.

    A humanoid that lies on the ground earns nothing, whatever it does there. In training, an
    episode that it spent there lowers its level: its motors become stronger (up to twice), and a
    high head earns reward. An episode in which it stood raises the level again. Tao et al. 2022
    (arXiv:2205.00307) found that getting up is learnable with stronger motors.
    """

    domain: ClassVar[str] = "humanoid"
    num_starts: ClassVar[int] = 4096

    def setup(self) -> None:
        super().setup()
        self.levels = Levels(self, LEVELS, start=LEVELS - 1)
        self.stood = self.add_state("stood")
        """Sum of the reward for standing, whether it moves or not, over this episode."""
        self.steps = self.add_state("steps")
        """Steps of this episode; the first one in training begins at a random time."""
        if self.cfg.curriculum:
            self.gain = self.sim.expand("actuator_gainprm")

    def after_physics(self) -> None:
        """Sum up how well the humanoid stands."""
        self.stood += self._stands()
        self.steps += 1.0

    def end_episode(self, mask: torch.Tensor) -> None:
        """Move to more or less help."""
        if self.cfg.curriculum:
            mean = self.stood / self.steps.clamp(min=1.0)
            counts = mask & (self.steps >= self.max_episode_length / 2)
            up = counts & (mean > HIGH) & (self.levels.now < LEVELS - 1)
            self.levels.move(up, counts & (mean < LOW))

    def reset_worlds(self, mask: torch.Tensor) -> None:
        super().reset_worlds(mask)
        if self.cfg.curriculum:
            self.gain[:, :, 0] = (1.0 + self._help()).unsqueeze(1)

    def levels_to_evaluate(self, count: int) -> range:
        """Evaluate without help."""
        return range(count - 1, count)

    def parts(self) -> dict[str, torch.Tensor]:
        sim, model = self.sim, self.sim.model
        torso = model.body("torso").id
        frame = sim.xmat[:, torso].view(-1, 3, 3)
        limbs = [model.body(f"{side}_{end}").id for side in ("left", "right") for end in LIMBS]
        ways = torch.stack([sim.xpos[:, limb] - sim.xpos[:, torso] for limb in limbs], dim=1)
        return {
            "joint_angles": sim.qpos[:, 7:],
            "head_height": self._head_height().unsqueeze(1),
            "extremities": (ways.unsqueeze(3) * frame.unsqueeze(1)).sum(2).flatten(1),
            "torso_vertical": self.axes("torso", "zx", "zy", "zz"),
            "com_velocity": sim.sensor("torso_subtreelinvel"),
            "velocity": sim.qvel,
        }

    def rewards(self) -> dict[str, torch.Tensor]:
        """Reward a high head, an upright torso and little effort; then keeping still or moving.

        On lower levels, also reward the head's height alone.
        """
        stands = self._stands()
        velocity, speed = self.sim.sensor("torso_subtreelinvel")[:, :2], self.cfg.speed
        height = (self._head_height() / HEAD_HEIGHT).clamp(max=1.0)
        extra = HEIGHT_REWARD * self._help() * height
        if not speed:
            return {"stand": stands * tolerance(velocity, margin=2.0).mean(dim=1) + extra}
        moves = tolerance(velocity.norm(dim=1), speed, math.inf, speed, "linear", 0.0)
        return {"move": stands * (5 * moves + 1) / 6 + extra}

    def metrics(self) -> dict[str, Any]:
        return {"level": self.levels.now.float()}

    def _stands(self) -> torch.Tensor:
        """Return the reward for standing, whether it moves or not, `(num_envs,)`."""
        standing = tolerance(self._head_height(), HEAD_HEIGHT, math.inf, margin=HEAD_HEIGHT / 4)
        upright = tolerance(self.axes("torso", "zz").squeeze(1), 0.9, math.inf, 1.9, "linear", 0.0)
        return self.small_control() * standing * upright

    def _help(self) -> torch.Tensor:
        """Return the share of the help that each environment gets, `(num_envs,)`: 0 on the highest
        level, 1 on the lowest."""
        return 1.0 - self.levels.now / (LEVELS - 1)

    def _head_height(self) -> torch.Tensor:
        """Return the head's height, `(num_envs,)`, m."""
        return self.sim.xpos[:, self.sim.model.body("head").id, 2]
