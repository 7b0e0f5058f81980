"""A planar arm with two motors that brings its fingertip to a target."""

import math
from typing import Any

import torch

from mjfleet import terms
from mjfleet.env import Env

from .config import ReacherConfig


class ReacherEnv(Env[ReacherConfig]):
    """Two actions in [-1, 1]: the torques of shoulder and elbow, of at most 0.5 and 0.25 N·m."""

    model_file = "model.xml"

    def setup(self) -> None:
        """Declare what the task remembers: one row per environment."""
        self.target = self.add_state("target", 2, reset="keep")
        """Position of the target, x and y in m."""

    def reset_worlds(self, mask: torch.Tensor) -> None:
        """Set a random pose at rest and a random target within reach, where `mask` is true."""
        pose = self.uniform(2, -2.0, 2.0)
        self.write(mask, self.sim.qpos, pose)

        angle, radius = self.uniform(1, -math.pi, math.pi), self.uniform(1, 0.1, 0.35)
        target = torch.cat((radius * angle.cos(), radius * angle.sin()), dim=1)
        self.write(mask, self.target, target)
        self.sim.mocap_pos[:, 0, :2] = self.target  # Moves the green ball, for viewers.

    def apply(self, action: torch.Tensor) -> None:
        """Set the torques, limited to what the motors can give."""
        self.sim.ctrl[:] = action.clamp(-1.0, 1.0)

    def observe(self) -> dict[str, torch.Tensor]:
        """Return numbers of about 1, with sensor noise for the actor, exact for the critic."""
        angles, speeds = self.sim.qpos, self.sim.qvel
        way = 5.0 * self.way_to_target()
        state = torch.cat((angles.cos(), angles.sin(), 0.2 * speeds, way), dim=1)
        noise = self.cfg.sensor_noise * self.normal(state.shape[1])
        return {"actor": state + noise, "critic": state}

    def rewards(self) -> dict[str, torch.Tensor]:
        """Reward approaching and reaching the target; penalise effort."""
        distance = self.way_to_target().norm(dim=1)
        effort = terms.squares(self.sim.ctrl)
        dt = self.step_dt  # Weights are per second.
        return {
            "approach": -50.0 * dt * distance,
            "reach": 50.0 * dt * torch.exp(-(distance / 0.05).square()),
            "effort": -self.cfg.effort_weight * dt * effort,
        }

    def deployment(self) -> dict[str, Any]:
        """Return what a robot's program must know: the actor's numbers, what an action means."""
        parts = [
            {"name": "cosines", "size": 2, "meaning": "of shoulder and elbow"},
            {"name": "sines", "size": 2},
            {"name": "speeds", "size": 2, "unit": "5 rad/s"},
            {"name": "way", "size": 2, "unit": "0.2 m", "meaning": "to the target, x and y"},
        ]
        return {"observations": {"actor": parts}, "torques": "gear * actions, within [-1, 1]"}

    def way_to_target(self) -> torch.Tensor:
        """Return the vector from fingertip to target, `(num_envs, 2)`, in m."""
        return self.target - self.sim.sensor("fingertip")[:, :2]
