"""Commanded velocities: drawn, steered towards headings, shown and set by viewers. In a worker."""

import math
from typing import ClassVar

import torch

from mjfleet.env import Env, Timer
from mjfleet.legged.config import VelocityConfig


class CommandedEnv(Env[VelocityConfig]):
    """A robot with a free joint that is told how fast to go.

    A subclass calls `set_up_commands` in `setup` and `renew_commands` at the end of
    `reset_worlds`. It sets the tensors below.
    """

    base: ClassVar[str] = "trunk"
    """The body that the free joint moves."""
    velocity: torch.Tensor
    """Velocity in the base's frame, `(num_envs, 3)`, m/s."""
    gyro: torch.Tensor
    """Angular velocity in the base's frame, `(num_envs, 3)`, rad/s."""

    above: torch.Tensor
    """Where arrows are drawn, relative to the base, `(3,)`, m."""

    def set_up_commands(self) -> None:
        """Make the tensors of the commands."""
        self.command = self.add_state("command", 3, reset="keep")
        """Forward and lateral velocity (m/s), yaw rate (rad/s), in the base's frame."""
        self.heading = self.add_state("heading", reset="keep")
        """Commanded heading, where a command names one (rad)."""
        self.has_heading = self.add_state("has_heading", dtype=torch.bool, reset="keep")
        self.stands = self.add_state("stands", dtype=torch.bool, reset="keep")
        self.next_command = Timer(self, *self.cfg.command.seconds)

    def renew_commands(self, mask: torch.Tensor) -> None:
        """Draw new commands where an episode begins, or where it is time for one; steer the others.

        Called in every step. Isaac Lab computes the yaw rate from the heading's error, too.
        """
        if self.command_override:
            return
        cfg, where = self.cfg.command, mask | self.next_command.due
        ranges = (cfg.forward, cfg.lateral, cfg.yaw)
        drawn = torch.cat([self.uniform(1, *limits) for limits in ranges], dim=1)
        kind = self.uniform(2, 0.0, 1.0)
        stands = kind[:, 0] < cfg.standing_share
        drawn = drawn.masked_fill(stands.unsqueeze(1), 0.0)
        self.stands[:] = torch.where(where, stands, self.stands)
        has_heading = (kind[:, 1] < cfg.heading_share) & ~stands
        self.has_heading[:] = torch.where(where, has_heading, self.has_heading)
        heading = self.uniform(1, -math.pi, math.pi).squeeze(1)
        self.heading[:] = torch.where(where, heading, self.heading)
        self.command[:] = torch.where(where.unsqueeze(1), drawn, self.command)
        error = torch.remainder(self.heading - self.yaw() + math.pi, 2 * math.pi) - math.pi
        rate = (0.5 * error).clamp(*cfg.yaw).to(self.command)
        self.command[:, 2] = torch.where(self.has_heading, rate, self.command[:, 2])

    def yaw(self) -> torch.Tensor:
        """Return the base's heading, `(num_envs,)`, rad."""
        w, x, y, z = self.sim.qpos[:, 3:7].unbind(dim=1)
        return torch.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))

    def errors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the errors from the command: `(num_envs, 2)`, m/s, and `(num_envs,)`, rad/s."""
        return self.velocity[:, :2] - self.command[:, :2], self.gyro[:, 2] - self.command[:, 2]

    def commands(self) -> dict[str, tuple[torch.Tensor, float, float]]:
        """Return velocities in m/s, forward and to the left, and the yaw rate in rad/s."""
        cfg = self.cfg.command
        ranges = {"forward": cfg.forward, "left": cfg.lateral, "turn_left": cfg.yaw}
        return {name: (self.command[:, i], *ranges[name]) for i, name in enumerate(ranges)}

    def debug_vis(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Draw commanded and measured velocities and yaw rates, in proportion to the robot: 1 m/s
        is twice as long as arrows are above its base, 1 rad/s as long."""
        base = self.sim.model.body(self.base).id
        frame = self.sim.xmat[:, base].view(-1, 3, 3)
        above = self.sim.xpos[:, base] + self.above
        scale = self.above[2]
        ahead = above + 0.8 * scale * frame[:, :, 0]
        return {
            "command": (above, 2 * scale * _turned(frame, self.command[:, :2])),
            "velocity": (above, 2 * scale * _turned(frame, self.velocity[:, :2])),
            "commanded turn": (ahead, scale * frame[:, :, 1] * self.command[:, 2:]),
            "turn": (ahead, scale * frame[:, :, 1] * self.gyro[:, 2:]),
        }


def _turned(frame: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    """Rotate vectors in a frame's x-y plane, `(num_envs, 2)`, into the world frame."""
    return (frame[:, :, :2] @ flat.to(frame).unsqueeze(2)).squeeze(2)
