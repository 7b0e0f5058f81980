"""What the Panda's tasks share: where its arm starts, and targets that its motors follow."""

from typing import Any, ClassVar, TypeVar

import torch

from mjfleet.env import Env

from .config import PandaConfig

C = TypeVar("C", bound=PandaConfig)
SPEED_LIMITS = (*4 * (2.175,), *3 * (2.61,))
"""Speed limits of the joints, rad/s."""


class PandaEnv(Env[C]):
    """Actions are speeds of targets of the joints, which the motors follow."""

    limits: ClassVar[tuple[float, ...]]
    """Speed limits, one for each action, rad/s or m/s."""
    centre: ClassVar[tuple[float, float, float]]
    """Where the position of a command is 0, m."""

    def count_actions(self) -> int:
        """Return one for each limit."""
        return len(self.limits)

    def setup(self) -> None:
        sim, model = self.sim, self.sim.model
        key = model.key("home")
        self.home = torch.tensor(key.qpos, device=self.device, dtype=sim.qpos.dtype)
        self.targets = torch.tensor(key.ctrl, device=self.device, dtype=sim.ctrl.dtype)
        """The joints' targets at the start of an episode, rad, and the fingers', m."""
        limits = torch.tensor(model.actuator_ctrlrange, device=self.device, dtype=sim.ctrl.dtype)
        self.low, self.high = limits.T
        damping = -model.actuator_biasprm[:7, 2] / model.actuator_gainprm[:7, 0]
        self.lead = torch.tensor(0.5 * damping * SPEED_LIMITS).to(sim.ctrl)
        """How far a target may be ahead of its joint, rad: what half the speed limit leads to. So
        targets do not run away while the hand presses against the table."""
        self.middle = torch.tensor(self.centre, device=self.device)
        self.stride = self.step_dt * self.cfg.speed * torch.tensor(self.limits, device=self.device)
        """By how much an action of 1 moves what it moves in a step, rad or m."""
        first = int(model.sensor("tcp_position").adr[0])
        # Views that follow the state.
        self.hand = sim.sensordata[:, first : first + 3]
        self.axes = sim.sensordata[:, first + 3 : first + 12].view(-1, 3, 3)
        self.joints, self.speeds = sim.qpos[:, :7], sim.qvel[:, :7]

    def start_arm(self, mask: torch.Tensor) -> None:
        """Start near home and at rest where `mask` is true."""
        world = mask.unsqueeze(1)
        away = self.uniform(7, -0.1, 0.1).to(self.joints)
        self.sim.qpos[:] = torch.where(world, self.home, self.sim.qpos)
        self.joints[:] = torch.where(world, self.joints + away, self.joints)
        self.sim.ctrl[:] = torch.where(world, self.targets, self.sim.ctrl)
        self.sim.ctrl[:, :7] = torch.where(world, self.joints, self.sim.ctrl[:, :7])

    def move(self, by: torch.Tensor) -> None:
        """Move the arm's targets by `(num_envs, 7)`, rad, within their ranges."""
        moved = (self.sim.ctrl[:, :7] + by).clamp(self.low[:7], self.high[:7])
        near = moved.clamp(self.joints - self.lead, self.joints + self.lead)
        self.sim.ctrl[:, :7] = near

    def jacobian(self) -> torch.Tensor:
        """Return the Jacobian of the tool centre point, transposed, `(num_envs, 7, 6)`: velocity
        and rotation in the world's axes that each joint causes."""
        axes, arms = self.sim.xaxis[:, :7], self.hand.unsqueeze(1) - self.sim.xanchor[:, :7]
        return torch.cat((torch.linalg.cross(axes, arms), axes), dim=2)

    def describe(self, parts: dict[str, tuple[int, str]]) -> dict[str, Any]:
        """Return what `deployment` does; `parts` of an observation have a size and a meaning."""
        known = [{"name": n, "size": size, "meaning": m} for n, (size, m) in parts.items()]
        return {
            "observations": {"actor": known},
            "stride": self.stride.tolist(),
            "lead": self.lead.tolist(),
            "centre": self.centre,
        }
