"""The planar runners of Gymnasium's MuJoCo tasks, version 5, and what all of its tasks share.

Defined by gymnasium/envs/mujoco/*_v5.py: each class names the page that documents it. An action
beyond the motors' range counts as their limit, as behind Gymnasium's wrapper ClipAction.
"""

from typing import ClassVar, Literal, TypeVar

import mujoco
import torch

from mjfleet.env import Env

from .config import HealthyConfig, RunnerConfig, V5Config

ASSETS = "gymnasium:envs/mujoco/assets"
C = TypeVar("C", bound=V5Config)
R = TypeVar("R", bound=RunnerConfig)


class V5Env(Env[C]):
    """What all tasks share: the initial state, and motors."""

    velocity_noise: ClassVar[Literal["uniform", "normal"]] = "uniform"
    """Distribution of the initial velocities; that of positions is uniform."""

    @classmethod
    def make_model(cls, cfg: C) -> mujoco.MjModel:
        # MuJoCo writes to a file that half_cheetah.xml uses a deprecated attribute.
        mujoco.set_mju_user_warning(lambda message: None)
        return super().make_model(cfg)

    def setup(self) -> None:
        sim = self.sim
        self.start = torch.from_numpy(sim.model.qpos0).to(self.device, sim.qpos.dtype)
        """Positions of the initial state, without noise."""
        ranges = torch.from_numpy(sim.model.actuator_ctrlrange).to(self.device, torch.float32)
        self.low, self.high = ranges.unbind(dim=1)
        self.action_limit = float(sim.model.actuator_ctrlrange[0, 1])

    def reset_worlds(self, mask: torch.Tensor) -> None:
        sim, scale, world = self.sim, self.cfg.reset_noise, mask.unsqueeze(1)
        nq, nv = sim.qpos.shape[1], sim.qvel.shape[1]
        place = self.start + self.uniform(nq, -scale, scale)
        is_normal = self.velocity_noise == "normal"
        speed = scale * self.normal(nv) if is_normal else self.uniform(nv, -scale, scale)
        sim.qpos[:] = torch.where(world, place.to(sim.qpos.dtype), sim.qpos)
        sim.qvel[:] = torch.where(world, speed.to(sim.qvel.dtype), sim.qvel)

    def apply(self, action: torch.Tensor) -> None:
        self.sim.ctrl[:] = action.clamp(self.low, self.high)

    def observe(self) -> dict[str, torch.Tensor]:
        state = self.state()
        return {"actor": state, "critic": state}

    def state(self) -> torch.Tensor:
        """Return what is observed."""
        return torch.cat((self.sim.qpos, self.sim.qvel), dim=1)


class RunnerEnv(V5Env[R]):
    """Rewards the forward velocity and small actions."""

    hidden: ClassVar[int] = 1
    """Number of the first positions that are not observed."""

    def setup(self) -> None:
        super().setup()
        self.before = self.add_state("before", dtype=self.sim.qpos.dtype, persistent=False)
        """Forward position before the step in m, `(num_envs,)`."""

    def apply(self, action: torch.Tensor) -> None:
        super().apply(action)
        self.before[:] = self.forward_position()

    def forward_position(self) -> torch.Tensor:
        """Return the forward position in m, `(num_envs,)`."""
        return self.sim.qpos[:, 0]

    def state(self) -> torch.Tensor:
        return super().state()[:, self.hidden :]

    def rewards(self) -> dict[str, torch.Tensor]:
        speed = (self.forward_position() - self.before) / self.step_dt
        effort = self.sim.ctrl.square().sum(dim=1)
        return {
            "forward": self.cfg.forward_weight * speed,
            "control": -self.cfg.control_weight * effort,
        }


class HalfCheetahEnv(RunnerEnv[RunnerConfig]):
    """gymnasium.farama.org/environments/mujoco/half_cheetah"""

    model_file = f"{ASSETS}/half_cheetah.xml"
    velocity_noise = "normal"


class SwimmerEnv(RunnerEnv[RunnerConfig]):
    """gymnasium.farama.org/environments/mujoco/swimmer"""

    model_file = f"{ASSETS}/swimmer.xml"
    hidden = 2


class HealthyEnv(RunnerEnv[HealthyConfig]):
    """Rewards health too, and ends when the robot is unhealthy."""

    def is_healthy(self) -> torch.Tensor:
        """Return where the robot is healthy, `(num_envs,)`, bool."""
        height, pitch = self.sim.qpos[:, 1], self.sim.qpos[:, 2]
        return is_within(height, self.cfg.healthy_height) & is_within(pitch, self.cfg.healthy_angle)

    def rewards(self) -> dict[str, torch.Tensor]:
        return {**super().rewards(), "healthy": self.cfg.healthy_reward * self.is_healthy()}

    def terminated(self) -> torch.Tensor:
        return ~self.is_healthy() & self.cfg.terminate_when_unhealthy


class Walker2dEnv(HealthyEnv):
    """gymnasium.farama.org/environments/mujoco/walker2d"""

    model_file = f"{ASSETS}/walker2d_v5.xml"

    def state(self) -> torch.Tensor:
        return torch.cat((self.sim.qpos[:, 1:], self.sim.qvel.clamp(-10.0, 10.0)), dim=1)


class HopperEnv(Walker2dEnv):
    """gymnasium.farama.org/environments/mujoco/hopper"""

    model_file = f"{ASSETS}/hopper.xml"

    def is_healthy(self) -> torch.Tensor:
        """Also with moderate angles and velocities: healthy_state_range."""
        rest = torch.cat((self.sim.qpos[:, 2:], self.sim.qvel), dim=1)
        return super().is_healthy() & is_within(rest, (-100.0, 100.0)).all(dim=1)


def is_within(values: torch.Tensor, limits: tuple[float, float]) -> torch.Tensor:
    """Return where values are between two limits, which are excluded."""
    return (values > limits[0]) & (values < limits[1])
