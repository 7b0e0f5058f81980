"""Ant and humanoid of Gymnasium's MuJoCo tasks, version 5, without contact forces.

Gymnasium's options for that are `include_cfrc_ext_in_observation=False, contact_cost_weight=0`.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch

from .env import ASSETS, HealthyEnv, is_within


class AntEnv(HealthyEnv):
    """gymnasium.farama.org/environments/mujoco/ant"""

    model_file = f"{ASSETS}/ant.xml"
    velocity_noise = "normal"
    hidden = 2
    accepted_findings: ClassVar[Mapping[str, str]] = {
        "start with joint ankle_": "Gymnasium's ant begins with its ankles at 0, as in its model",
        "differs between the engines": "the ankles are pushed back into their range at the start",
    }

    def is_healthy(self) -> torch.Tensor:
        """With a finite state, and limits of the height that are included."""
        low, high = self.cfg.healthy_height
        height = self.sim.qpos[:, 2]
        finite = torch.cat((self.sim.qpos, self.sim.qvel), dim=1).isfinite().all(dim=1)
        return finite & (height >= low) & (height <= high)


class HumanoidEnv(HealthyEnv):
    """gymnasium.farama.org/environments/mujoco/humanoid"""

    model_file = f"{ASSETS}/humanoid.xml"
    hidden = 2
    accepted_findings: ClassVar[Mapping[str, str]] = {
        "columns 54, 64, 74, ": "Gymnasium's humanoid observes the masses of its bodies, too"
    }

    def forward_position(self) -> torch.Tensor:
        """Position of the centre of mass."""
        return self.sim.subtree_com[:, 0, 0]

    def is_healthy(self) -> torch.Tensor:
        return is_within(self.sim.qpos[:, 2], self.cfg.healthy_height)

    def state(self) -> torch.Tensor:
        sim = self.sim
        inertias, velocities = (x[:, 1:].flatten(1) for x in (sim.cinert, sim.cvel))
        return torch.cat((super().state(), inertias, velocities, sim.qfrc_actuator[:, 6:]), dim=1)
