"""Ant and humanoid of Gymnasium's MuJoCo tasks, version 5.

Gymnasium reads positions of bodies, inertias and contact forces as `mujoco.mj_step` leaves them,
which is one stage of the integrator behind; `Simulation.last_step` gives the same.
"""

import torch

from .env import ASSETS, HealthyEnv, is_within


class SpatialEnv(HealthyEnv):
    """What both share: contact forces are observed, and have a price."""

    hidden = 2

    def setup(self) -> None:
        self.forces = self.sim.last_step("cfrc_ext")
        """External forces on bodies, `(num_envs, number of bodies, 6)`, in N·m and N."""
        super().setup()

    def is_healthy(self) -> torch.Tensor:
        return is_within(self.sim.qpos[:, 2], self.cfg.healthy_height)

    def rewards(self) -> dict[str, torch.Tensor]:
        return {**super().rewards(), "contact": -self.contact_cost()}

    def contact_cost(self) -> torch.Tensor:
        """Return the price of contact forces, `(num_envs,)`."""
        return self.cfg.contact_weight * self.forces.square().sum(dim=(1, 2))


class AntEnv(SpatialEnv):
    """gymnasium.farama.org/environments/mujoco/ant"""

    model_file = f"{ASSETS}/ant.xml"
    velocity_noise = "normal"

    def setup(self) -> None:
        super().setup()
        self.torso = self.sim.last_step("xpos")[:, 1]
        """Position of the torso in m, `(num_envs, 3)`."""

    def forward_position(self) -> torch.Tensor:
        return self.torso[:, 0]

    def is_healthy(self) -> torch.Tensor:
        """With a finite state, and limits of the height that are included."""
        low, high = self.cfg.healthy_height
        height = self.sim.qpos[:, 2]
        finite = torch.cat((self.sim.qpos, self.sim.qvel), dim=1).isfinite().all(dim=1)
        return finite & (height >= low) & (height <= high)

    def contact_cost(self) -> torch.Tensor:
        return self.cfg.contact_weight * self.limited().square().sum(dim=(1, 2))

    def limited(self) -> torch.Tensor:
        """Return the forces, each limited to 1 (contact_force_range)."""
        return self.forces.clamp(-1.0, 1.0)

    def state(self) -> torch.Tensor:
        return torch.cat((super().state(), self.limited()[:, 1:].flatten(1)), dim=1)


class HumanoidEnv(SpatialEnv):
    """gymnasium.farama.org/environments/mujoco/humanoid"""

    model_file = f"{ASSETS}/humanoid.xml"

    def setup(self) -> None:
        super().setup()
        sim = self.sim
        self.centers, self.inertias = sim.last_step("xipos"), sim.last_step("cinert")
        """Centres of mass of the bodies in m, and their inertias."""
        self.velocities = sim.last_step("cvel")
        """Velocities of the bodies in rad/s and m/s."""
        mass = torch.from_numpy(sim.model.body_mass).to(self.device, self.centers.dtype)
        self.shares = mass / mass.sum()

    def forward_position(self) -> torch.Tensor:
        """Of the centre of mass."""
        return self.centers[:, :, 0] @ self.shares

    def contact_cost(self) -> torch.Tensor:
        return super().contact_cost().clamp(max=10.0)

    def state(self) -> torch.Tensor:
        motors = self.sim.qfrc_actuator[:, 6:]
        bodies = (self.inertias, self.velocities, self.forces)
        inertias, velocities, forces = (x[:, 1:].flatten(1) for x in bodies)
        return torch.cat((super().state(), inertias, velocities, motors, forces), dim=1)
