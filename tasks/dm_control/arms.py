"""Pendulum, acrobot, reacher, finger and ball in a cup, as dm_control/suite defines them."""

import math
from typing import ClassVar

import mujoco
import numpy as np
import torch

from .config import SuiteConfig, TargetConfig
from .suite import SuiteEnv, tolerance


class Pendulum(SuiteEnv[SuiteConfig]):
    """One action: a torque of up to 1 N·m, a fifth of what holds the pendulum level."""

    domain: ClassVar[str] = "pendulum"

    def parts(self) -> dict[str, torch.Tensor]:
        return {"orientation": self.axes("pole", "zz", "xz"), "velocity": self.sim.qvel}

    def rewards(self) -> dict[str, torch.Tensor]:
        """Reward being within 8 degrees of upright."""
        upright = self.axes("pole", "zz").squeeze(1)
        return {"upright": tolerance(upright, math.cos(math.radians(8)), 1.0)}


class Acrobot(SuiteEnv[SuiteConfig]):
    """One action: a torque of up to 2 N·m at the elbow."""

    domain: ClassVar[str] = "acrobot"

    def parts(self) -> dict[str, torch.Tensor]:
        links = "upper_arm", "lower_arm"
        turned = [self.axes(link, entry) for entry in ("xz", "zz") for link in links]
        return {"orientations": torch.cat(turned, dim=1), "velocity": self.sim.qvel}

    def rewards(self) -> dict[str, torch.Tensor]:
        """Reward a tip that is near the target above."""
        sites, model = self.sim.site_xpos, self.sim.model
        way = sites[:, model.site("target").id] - sites[:, model.site("tip").id]
        radius = float(model.site("target").size[0])
        return {"near": tolerance(way.norm(dim=1), 0.0, radius, margin=1.0)}


class Reacher(SuiteEnv[TargetConfig]):
    """Two actions: torques of up to 0.05 N·m at shoulder and wrist."""

    domain: ClassVar[str] = "reacher"

    @classmethod
    def change_spec(cls, spec: mujoco.MjSpec, cfg: TargetConfig) -> None:
        """Turn the target into a mocap body, which can be elsewhere in each world."""
        old = spec.geom("target")
        body = spec.worldbody.add_body(name="target", mocap=True, pos=old.pos)
        size = [cfg.target_size, 0.0, 0.0]
        body.add_geom(name="ball", type=old.type, size=size, material=old.material)
        spec.delete(old)

    def reset_worlds(self, mask: torch.Tensor) -> None:
        """Draw a pose and a place of the target."""
        super().reset_worlds(mask)
        angle, radius = self.uniform(1, 0.0, 2 * math.pi), self.uniform(1, 0.05, 0.2)
        place = torch.cat((radius * angle.sin(), radius * angle.cos()), dim=1)
        target = self.sim.mocap_pos[:, 0, :2]
        target[:] = torch.where(mask.unsqueeze(1), place.to(target), target)

    def parts(self) -> dict[str, torch.Tensor]:
        return {
            "position": self.sim.qpos,
            "to_target": self._way(),
            "velocity": self.sim.qvel,
        }

    def rewards(self) -> dict[str, torch.Tensor]:
        """Reward a fingertip that touches the target."""
        radii = self.cfg.target_size + float(self.sim.model.geom("finger").size[0])
        return {"reach": tolerance(self._way().norm(dim=1), 0.0, radii)}

    def _way(self) -> torch.Tensor:
        """Return the vector from fingertip to target, `(num_envs, 2)`, m."""
        finger = self.sim.model.geom("finger").id
        return self.sim.mocap_pos[:, 0, :2] - self.sim.geom_xpos[:, finger, :2]


class Finger(SuiteEnv[SuiteConfig]):
    """Two actions: torques of up to 30 and 15 N·m at the finger's joints."""

    domain: ClassVar[str] = "finger"
    num_starts: ClassVar[int] = 4096

    @classmethod
    def change_spec(cls, spec: mujoco.MjSpec, cfg: SuiteConfig) -> None:
        """Set the damping of the task, and hide marks that it does not use."""
        spec.joint("hinge").damping[0] = 0.03
        for name in ("target", "tip"):
            spec.site(name).rgba[3] = 0.0

    def parts(self) -> dict[str, torch.Tensor]:
        sensor = self.sim.sensor
        tip = sensor("tip") - sensor("spinner")
        joints = "proximal", "distal"
        return {
            "position": torch.cat([*map(sensor, joints), tip[:, :1], tip[:, 2:]], dim=1),
            "velocity": torch.cat(
                [sensor(f"{name}_velocity") for name in (*joints, "hinge")], dim=1
            ),
            "touch": torch.cat((sensor("touchtop"), sensor("touchbottom")), dim=1).log1p(),
        }

    def rewards(self) -> dict[str, torch.Tensor]:
        """Reward spinning at 15 rad/s or faster."""
        speed = -self.sim.sensor("hinge_velocity").squeeze(1)
        return {"spin": tolerance(speed, 15.0, math.inf)}


class BallInCup(SuiteEnv[SuiteConfig]):
    """Two actions: forces of up to 5 N on the cup, to the side and up."""

    domain: ClassVar[str] = "ball_in_cup"
    num_starts: ClassVar[int] = 4096

    def ranges(self) -> tuple[np.ndarray, np.ndarray]:
        """Return those of a ball around a cup that is at rest."""
        return np.array([0.0, 0.0, -0.2, 0.2]), np.array([0.0, 0.0, 0.2, 0.5])

    def parts(self) -> dict[str, torch.Tensor]:
        return {"position": self.sim.qpos, "velocity": self.sim.qvel}

    def rewards(self) -> dict[str, torch.Tensor]:
        """Reward a ball that is inside the cup."""
        sim, model = self.sim, self.sim.model
        target = model.site("target")
        way = (sim.site_xpos[:, target.id] - sim.xpos[:, model.body("ball").id]).abs()
        radius = model.geom("ball").size[0]
        width, height = float(target.size[0] - radius), float(target.size[2] - radius)
        inside = (way[:, 0] < width) & (way[:, 2] < height)
        return {"catch": inside.to(way)}
