"""The pendulums of Gymnasium's MuJoCo tasks, version 5."""

import torch

from .config import DoublePendulumConfig, V5Config
from .env import ASSETS, V5Env


class PendulumEnv(V5Env[V5Config]):
    """gymnasium.farama.org/environments/mujoco/inverted_pendulum"""

    model_file = f"{ASSETS}/inverted_pendulum.xml"

    def rewards(self) -> dict[str, torch.Tensor]:
        return {"upright": (~self.terminated()).float()}

    def terminated(self) -> torch.Tensor:
        """Beyond 0.2 rad, or where the state is not finite."""
        finite = self.state().isfinite().all(dim=1)
        return ~(finite & (self.sim.qpos[:, 1].abs() <= 0.2))


class DoublePendulumEnv(V5Env[DoublePendulumConfig]):
    """gymnasium.farama.org/environments/mujoco/inverted_double_pendulum"""

    model_file = f"{ASSETS}/inverted_double_pendulum.xml"
    velocity_noise = "normal"

    def setup(self) -> None:
        super().setup()
        self.tip = self.sim.site_xpos[:, 0]
        """Position of the tip in m, `(num_envs, 3)`."""

    def state(self) -> torch.Tensor:
        sim, angles = self.sim, self.sim.qpos[:, 1:]
        force = sim.qfrc_constraint[:, :1].clamp(-10.0, 10.0)
        speeds = sim.qvel.clamp(-10.0, 10.0)
        return torch.cat((sim.qpos[:, :1], angles.sin(), angles.cos(), speeds, force), dim=1)

    def rewards(self) -> dict[str, torch.Tensor]:
        (x, _, y), (_, first, second) = self.tip.unbind(dim=1), self.sim.qvel.unbind(dim=1)
        return {
            "healthy": self.cfg.healthy_reward * ~self.terminated(),
            "distance": -0.01 * x.square() - (y - 2).square(),
            "velocity": -1e-3 * first.square() - 5e-3 * second.square(),
        }

    def terminated(self) -> torch.Tensor:
        """The tip at 1 m or below."""
        return self.tip[:, 2] <= 1
