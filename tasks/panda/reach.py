"""A Franka Panda that brings its hand to commanded poses."""

from typing import Any, ClassVar

import mujoco
import numpy as np
import torch
from mujoco.batch import Batch

from mjfleet.errors import UserError

from .arm import SPEED_LIMITS, PandaEnv
from .config import ReachConfig

POSES, ROUNDS = 2048, 100
"""Largest number of poses from which commands are drawn, and of searches for as many."""


class ReachEnv(PandaEnv[ReachConfig]):
    """Seven actions bring the hand to a commanded position and orientation."""

    model_file: ClassVar[str] = "reach.xml"
    limits: ClassVar[tuple[float, ...]] = SPEED_LIMITS
    centre: ClassVar[tuple[float, float, float]] = (0.5, 0.0, 0.4)

    def setup(self) -> None:
        super().setup()
        self.poses = torch.tensor(self._reachable(), device=self.device, dtype=torch.float32)
        self.command = self.add_state("command", 6, reset="keep")
        """The hand's position from that at home, forward, left and up, m; its roll, pitch and yaw
        about the same axes, rad, which are 0 where it points down."""
        self.period = max(1, round(self.cfg.pose_seconds / self.step_dt))
        """Environment steps for each pose."""
        # Isaac Lab's for joints; position and orientation of the hand follow from the joints.
        amplitudes = [0.01] * 14 + [0.002] * 3 + [0.01] * 3 + [0.0] * 7
        self.noise = self.cfg.noise * torch.tensor(amplitudes, device=self.device)

    def reset_worlds(self, mask: torch.Tensor) -> None:
        self.start_arm(mask)
        # This runs in every step, so that commands may change in the midst of an episode.
        if not self.command_override:
            renewed = self.episode_length_buf % self.period == 0
            last = len(self.poses) - 1
            index = self.uniform(1, 0, last + 1).long().squeeze(1).clamp(max=last)
            self.command[:] = torch.where(renewed.unsqueeze(1), self.poses[index], self.command)

    def apply(self, action: torch.Tensor) -> None:
        """Move the targets of the arm's joints; the fingers stay half open."""
        self.move(self.stride * action.clamp(-1.0, 1.0))

    def observe(self) -> dict[str, torch.Tensor]:
        self.sim.mocap_pos[:, 0] = self.middle + self.command[:, :3]
        self.sim.mocap_quat[:, 0] = pointing(self.command[:, 3:])
        offsets = self.joints - self.home[:7]
        way, turn = self.errors()
        state = torch.cat((offsets, self.speeds, way, turn, self.action), dim=1).float()
        noisy = state + self.noise * self.uniform(state.shape[1], -1.0, 1.0)
        return {"actor": noisy, "critic": state}

    def errors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the way to the target and the turn into its orientation, as a rotation vector:
        `(num_envs, 3)` each, in the world's axes, m and rad."""
        wanted = axes_of(pointing(self.command[:, 3:]))
        sine = 0.5 * torch.linalg.cross(self.axes.float(), wanted).sum(dim=1)
        size = sine.norm(dim=1, keepdim=True).clamp(min=1e-9)
        cosine = 0.5 * ((self.axes * wanted).sum(dim=(1, 2)).float() - 1)
        angle = torch.atan2(size, cosine.unsqueeze(1))
        return (self.middle + self.command[:, :3] - self.hand).float(), sine * angle / size

    def rewards(self) -> dict[str, torch.Tensor]:
        """Return weighted terms, per second. Their kinds are those of Isaac Lab's reaching."""
        w, (way, turn) = self.cfg.weights, self.errors()
        distance, angle = way.norm(dim=1), turn.norm(dim=1)
        terms = {
            "distance": w.distance * distance,
            "near": w.near * (1 - torch.tanh(distance / 0.1)),
            "at": w.at * (1 - torch.tanh(distance / 0.02)),
            "angle": w.angle * angle,
            "aligned": w.aligned * (1 - torch.tanh(angle / 0.3)),
            "effort": w.effort * self.action.square().sum(dim=1),
            "jerk": w.jerk * (self.action - self.previous_action).square().sum(dim=1),
        }
        return {name: term * self.step_dt for name, term in terms.items()}

    def metrics(self) -> dict[str, torch.Tensor | tuple[torch.Tensor, torch.Tensor]]:
        """Return errors in m and rad when the time of a pose is up."""
        ends = (self.episode_length_buf % self.period == 0).float()
        way, turn = self.errors()
        return {
            "position_error": (ends * way.norm(dim=1), ends),
            "orientation_error": (ends * turn.norm(dim=1), ends),
        }

    def commands(self) -> dict[str, tuple[torch.Tensor, float, float]]:
        """Return position in m and orientation in rad, as `command` has them."""
        p = self.cfg.pose
        names = ("forward", "left", "up", "roll", "pitch", "yaw")
        ranges = (p.forward, p.left, p.up, p.tilt, p.tilt, p.turn)
        return {names[i]: (self.command[:, i], *ranges[i]) for i in range(6)}

    def deployment(self) -> dict[str, Any]:
        """Return the parts of an observation, and what an action means."""
        parts = {
            "joint_positions": (7, "less default_pose, rad"),
            "joint_velocities": (7, "rad/s"),
            "way": (3, "from the tool centre point to its target, in the base's axes, m"),
            "turn": (3, "of the hand to its target, a rotation vector in the base's axes, rad"),
            "last_actions": (7, "the newest output of the policy, zeros at first"),
        }
        moves = "the joints' targets move by stride * actions in each step, rad"
        return {**self.describe(parts), "targets": moves}

    def _reachable(self) -> np.ndarray:
        """Return commands within their ranges that the hand can fulfil, `(at most POSES, 6)`.

        They are poses of the hand at random angles of the joints, always the same ones.

        Raises:
            UserError: there are none.
        """
        model, cfg, rng = self.sim.model, self.cfg.pose, np.random.default_rng(0)
        home, tcp = model.key("home").qpos[:7], model.site("tcp").id
        ranges = np.array((cfg.forward, cfg.left, cfg.up, cfg.tilt, cfg.tilt, cfg.turn)).T
        batch = Batch(model, nsim=2 * POSES, nthread=torch.get_num_threads())
        qpos, places, frames = (batch.bind(name) for name in ("qpos", "site_xpos", "site_xmat"))
        found: list[np.ndarray] = []
        for _ in range(ROUNDS):
            angles = home + rng.uniform(-cfg.spread, cfg.spread, (2 * POSES, 7))
            qpos[:, :7] = angles.clip(*model.jnt_range[:7].T)
            batch.forward(stage=mujoco.mjtStage.mjSTAGE_POS.value)
            axes = frames[:, tcp].reshape(-1, 3, 3)
            x, y, z = np.moveaxis(axes, 2, 0) * [[[1]], [[-1]], [[-1]]]
            turns = np.arctan2(y[:, 2], z[:, 2]), np.arcsin(-x[:, 2]), np.arctan2(x[:, 1], x[:, 0])
            commands = np.column_stack((places[:, tcp] - self.centre, *turns))
            fits = (ranges[0] <= commands) & (commands <= ranges[1])
            found.extend(commands[fits.all(axis=1)])
            if len(found) >= POSES:
                break
        if not found:
            raise UserError(
                f"none of {2 * POSES * ROUNDS} random poses of the arm has a hand within the "
                "ranges of --env.pose; widen them, or --env.pose.spread."
            )
        return np.array(found[:POSES])


def pointing(turns: torch.Tensor) -> torch.Tensor:
    """Return the quaternion of a hand that points down, then rolls, pitches and yaws about the
    world's axes by `turns`, `(num_envs, 3)`, rad."""
    cos, sin = (0.5 * turns).cos(), (0.5 * turns).sin()
    (cr, cp, cy), (sr, sp, sy) = cos.unbind(1), sin.unbind(1)
    w, x = cr * cp * cy + sr * sp * sy, sr * cp * cy - cr * sp * sy
    y, z = cr * sp * cy + sr * cp * sy, cr * cp * sy - sr * sp * cy
    return torch.stack((-x, w, z, -y), dim=1)


def axes_of(quaternion: torch.Tensor) -> torch.Tensor:
    """Return the axes x, y and z of a rotated frame, `(num_envs, 3, 3)`, one a row."""
    w, x, y, z = quaternion.unbind(1)
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)),
        (2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x)),
        (2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)),
    )
    return torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)
