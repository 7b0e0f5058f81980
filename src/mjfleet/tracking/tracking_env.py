"""A robot does what clips show. Runs in a worker.

Terms and numbers are those of BeyondMimic (Liao et al. 2025, arXiv:2508.08241) and of mjlab's
tracking task (github.com/mujocolab/mjlab), but for a frame that is never late.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import mujoco
import torch

from mjfleet import terms
from mjfleet.env import Env, Timer
from mjfleet.errors import UserError
from mjfleet.parts import Motion, vary
from mjfleet.parts.motion.kinematics import Bodies, body_velocities
from mjfleet.quaternions import (
    conjugate,
    from_rotation_vector,
    heading,
    multiply,
    rotate,
    rotation_vector,
    two_columns,
)
from mjfleet.tracking.config import TrackingConfig
from mjfleet.tracking.scene import SELF, TOUCH, Motors, make_robot

PRESSED = 10.0
"""Force between bodies of a robot beyond which they have collided, N."""


@dataclass(frozen=True)
class Part:
    """Numbers of an observation, and what they are."""

    name: str
    values: torch.Tensor  # `(num_envs, size)`, float32.
    noise: float = 0.0
    """Largest noise on what the policy observes, of either sign."""
    unit: str = "1"
    meaning: str = ""
    is_estimated: bool = False
    """Whether a robot has to estimate them; the policy sees them with `state_estimation` alone."""


class TrackingEnv(Env[TrackingConfig]):
    """Actions move the joints' targets from the pose `home`; PD controllers follow.

    A robot's class sets `model_file`; its configuration names the bodies. A fixed robot has no base
    that noise moves, nor velocities of it in observations.
    """

    zero_is_home = True
    accepted_findings: ClassVar[Mapping[str, str]] = {
        "observe()['critic'] columns": "the anchor is among the bodies in its frame, as published",
    }

    @classmethod
    def make_model(cls, cfg: TrackingConfig) -> mujoco.MjModel:
        return make_robot(cls.model_path(), cfg)

    def setup(self) -> None:
        sim, model, cfg = self.sim, self.sim.model, self.cfg
        if cfg.anchor not in cfg.bodies or not {*cfg.end_bodies} <= {*cfg.bodies}:
            raise UserError("--env.bodies must name the anchor and all of --env.end-bodies, too.")
        self.motion = Motion(self, cfg.clips, cfg.bodies, cfg.sampling)
        self.motors = Motors(self)
        self.anchor = cfg.bodies.index(cfg.anchor)
        long = {"dtype": torch.long, "device": self.device}
        self.ends = torch.tensor([cfg.bodies.index(name) for name in cfg.end_bodies], **long)
        self.ids = torch.tensor(self.motion.body_ids, **long)
        self.roots = torch.from_numpy(model.body_rootid).to(self.ids)[self.ids]
        self.floats = model.njnt > 0 and model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE
        self.action_scale = cfg.action_scale * self.motors.reach
        self.home = self.motors.pose
        names = [model.sensor(i).name for i in range(model.nsensor)]
        self.touches = [sim.sensor(name) for name in names if name.startswith(TOUCH)]
        self.own_force = sim.sensor(SELF) if SELF in names else None
        self.seconds = self.add_state("seconds", persistent=False)
        """Time of the clip, which a viewer may write."""
        self.sought = self.add_state("sought", persistent=False)
        bias = 0.0 if self.is_evaluation else cfg.random.encoder_bias
        self.bias = self.add_state(
            "bias", self.num_actions, reset=lambda _: self.uniform(self.num_actions, -bias, bias)
        )
        self._prepare_draws()
        if not self.is_evaluation:
            self._vary_robots()
        noise = [part.noise for part in self.seen(self.parts()) for _ in part.values[0]]
        self.amplitudes = torch.tensor(noise, device=self.device) * (not self.is_evaluation)
        self.cache("squares", "off", "errors")
        self.after_physics()

    def _prepare_draws(self) -> None:
        cfg = self.cfg.start
        joints = [cfg.joints] * len(self.motors.places)
        amounts = [*cfg.position, *cfg.rotation, *cfg.velocity, *cfg.spin] if self.floats else []
        start = torch.tensor([*amounts, *joints], device=self.device)
        self.amounts = start * (not self.is_evaluation)
        """How far episodes begin from their frames: base, its velocities, joints."""
        push = torch.tensor([*cfg.velocity, *cfg.spin], device=self.device)
        self.push = push * (self.cfg.random.pushes and self.floats and not self.is_evaluation)
        self.next_push = Timer(self, *self.cfg.random.push_seconds)

    def _vary_robots(self) -> None:
        cfg = self.cfg.random
        for column, amount in enumerate(cfg.center_of_mass):
            if amount:
                range_, anchor = (-amount, amount), re.escape(self.cfg.anchor)
                vary(self, "body_ipos", anchor, "add", range_, columns=(column,))
        if self.cfg.feet:
            feet = [re.escape(foot) for foot in self.cfg.feet]
            vary(self, "geom_friction", feet, "set", cfg.friction, together=True)

    def reset_worlds(self, mask: torch.Tensor) -> None:
        """Start near the current frame."""
        frame = self.motion.now()
        qpos, qvel = frame.qpos.clone(), frame.qvel.clone()
        noise = self.amounts * self.uniform(len(self.amounts), -1.0, 1.0)
        if self.floats:
            place, turn, speeds = noise[:, :3], noise[:, 3:6], noise[:, 6:12]
            qpos[:, :3] += place
            qpos[:, 3:7] = multiply(from_rotation_vector(turn), qpos[:, 3:7])
            qvel[:, :6] += speeds
        places = self.motors.places
        joints = qpos[:, places] + noise[:, -len(places) :]
        qpos[:, places] = joints.clamp(self.motors.low, self.motors.high)
        self.write(mask, self.sim.qpos, qpos)
        self.write(mask, self.sim.qvel, qvel)

    def apply(self, action: torch.Tensor) -> None:
        # A motor's controller measures its joint by the same encoder as the policy.
        self.sim.ctrl[:] = self.home + self.action_scale * action - self.bias
        if self.floats:
            push = self.push * self.uniform(6, -1.0, 1.0) * self.next_push.due.unsqueeze(1)
            self.sim.qvel[:, :6] += push
        if self.command_override:
            self._seek()

    def _seek(self) -> None:
        """Go to the time of the clip that a viewer has written, if it is another one now."""
        is_new = self.seconds != self.sought
        self.sought.copy_(self.seconds)
        self.motion.seek(torch.where(is_new, self.seconds, self.motion.time))
        frame = self.motion.now()
        self.write(is_new, self.sim.qpos, frame.qpos)
        self.write(is_new, self.sim.qvel, frame.qvel)

    def robot(self) -> Bodies:
        """Return the bodies of the robots, as `motion.now().bodies` has them of the reference."""
        sim = self.sim
        fields = (sim.xpos, sim.xquat, sim.cvel)
        positions, rotations, cvel = (field[:, self.ids].float() for field in fields)
        centres = sim.subtree_com[:, self.roots].float()
        return Bodies(positions, rotations, *body_velocities(positions, cvel, centres))

    def after_physics(self) -> None:
        """Compute, by name, what rewards, terminations and metrics are made of."""
        own, frame, anchor = self.robot(), self.motion.now(), self.anchor
        wanted = frame.bodies
        apart = wanted.positions - own.positions
        # The reference, moved to the robot's anchor in x and y, and turned to its heading.
        own_anchor, turn = own.rotations[:, anchor], wanted.rotations[:, anchor]
        turned = heading(multiply(own_anchor, conjugate(turn))).unsqueeze(1)
        place = torch.cat((own.positions[:, anchor, :2], wanted.positions[:, anchor, 2:]), dim=1)
        around = wanted.positions - wanted.positions[:, anchor : anchor + 1]
        moved = place.unsqueeze(1) + rotate(turned, around) - own.positions
        angles = _angle(multiply(turned, wanted.rotations), own.rotations)
        self.squares = {
            "anchor_position": terms.squares(apart[:, anchor]),
            "anchor_rotation": _angle(turn, own_anchor).square(),
            "body_position": _mean_square(moved),
            "body_rotation": angles.square().mean(dim=1),
            "body_velocity": _mean_square(wanted.velocities - own.velocities),
            "body_spin": _mean_square(wanted.spins - own.spins),
        }
        gravity = terms.projected_gravity(own_anchor) - terms.projected_gravity(turn)
        self.off = {"anchor_height": apart[:, anchor, 2].abs(), "gravity": gravity[:, 2].abs()}
        if len(self.ends):
            self.off["body_height"] = moved[:, self.ends, 2].abs().amax(dim=1)
        joints = self.sim.qpos[:, self.motors.places].float() - frame.qpos[:, self.motors.places]
        self.errors = {
            "joint_error": joints.abs().mean(dim=1),
            "body_error": moved.norm(dim=2).mean(dim=1),
            "anchor_error": apart[:, anchor].norm(dim=1),
        }
        if not self.command_override:
            self.seconds.copy_(self.motion.time)

    def parts(self) -> list[Part]:
        """Return the parts of the critic's observation; those that the policy sees come first."""
        frame, noise, sim = self.motion.now(), self.cfg.noise, self.sim
        places, dofs = self.motors.places, self.motors.dofs
        positions, rotations = (field[:, self.ids].float() for field in (sim.xpos, sim.xquat))
        anchor = rotations[:, self.anchor : self.anchor + 1]
        back, origin = conjugate(anchor), positions[:, self.anchor : self.anchor + 1]
        wanted = frame.bodies.positions[:, self.anchor], frame.bodies.rotations[:, self.anchor]
        ahead = rotate(back[:, 0], wanted[0] - origin[:, 0])
        turn = two_columns(multiply(back[:, 0], wanted[1]))
        columns = "first two columns of its rotation matrix, row by row"
        parts = [
            Part("reference_positions", frame.qpos[:, places], unit="rad", meaning="of the clip"),
            Part("reference_velocities", frame.qvel[:, dofs], unit="rad/s", meaning="of the clip"),
            Part("anchor_position", ahead, noise.anchor_position, "m",
                 f"the clip's {self.cfg.anchor} in the robot's", True),
            Part("anchor_rotation", turn, noise.anchor_rotation, "1",
                 f"the clip's {self.cfg.anchor} in the robot's: {columns}"),
        ]  # fmt: skip
        if self.floats:
            base, speeds = sim.qpos[:, 3:7].float(), sim.qvel[:, :6].float()
            velocity = terms.in_frame(base, speeds[:, :3])
            in_base = "of the base, in its frame"
            parts += [
                Part("velocity", velocity, noise.velocity, "m/s", in_base, True),
                Part("gyro", speeds[:, 3:], noise.spin, "rad/s", in_base),
            ]
        joints, rates = sim.qpos[:, places].float() - self.home, sim.qvel[:, dofs].float()
        around = rotate(back, positions - origin).flatten(1)
        turns = two_columns(multiply(back, rotations)).flatten(1)
        return [
            *parts,
            Part("joint_positions", joints, noise.joints, "rad", "less default_pose"),
            Part("joint_velocities", rates, noise.speeds, "rad/s"),
            Part("last_actions", self.action, meaning="the newest output, zeros at first"),
            Part("body_positions", around, unit="m"),
            Part("body_rotations", turns),
        ]

    def seen(self, parts: list[Part]) -> list[Part]:
        """Return the parts that the policy observes."""
        seen = [part for part in parts if not part.name.startswith("body_")]
        return [part for part in seen if self.cfg.state_estimation or not part.is_estimated]

    def observe(self) -> dict[str, torch.Tensor]:
        """Return the clip, and what the robot measures; the value network observes all."""
        parts = self.parts()
        seen = self.seen(parts)
        measured = [p.values + self.bias if p.name == "joint_positions" else p.values for p in seen]
        noise = self.amplitudes * self.uniform(len(self.amplitudes), -1.0, 1.0)
        return {
            "actor": torch.cat(measured, dim=1) + noise,
            "critic": torch.cat([part.values for part in parts], dim=1),
        }

    def rewards(self) -> dict[str, torch.Tensor]:
        widths = vars(self.cfg.widths)
        tracked = {k: torch.exp(v / -(widths[k] ** 2)) for k, v in self.squares.items()}
        joints = self.sim.qpos[:, self.motors.places].float()
        return {
            **tracked,
            "action_rate": terms.action_rate(self.action, self.previous_action),
            "joint_limits": terms.joint_limits(joints, self.motors.low, self.motors.high),
            "touch": self.touched(),
            "self_collision": self.collided(),
        }

    def touched(self) -> torch.Tensor:
        """Return the number of contacts between the ground and bodies that must not touch it."""
        if not self.touches:
            return torch.zeros_like(self.seconds)
        whole, *allowed = (found[:, 0].float() for found in self.touches)
        return (whole - sum(allowed)).clamp(min=0.0)

    def collided(self) -> torch.Tensor:
        """Return 1 where bodies of the robot press on each other, otherwise 0."""
        if self.own_force is None:
            return torch.zeros_like(self.seconds)
        return (self.own_force.float().norm(dim=1) > PRESSED).float()

    def reward_weights(self) -> Mapping[str, float]:
        return {name: self.step_dt * weight for name, weight in vars(self.cfg.weights).items()}

    def terminated(self) -> torch.Tensor:
        """Return where the robot is too far from its frame: by heights, or the anchor's tilt."""
        limits = vars(self.cfg.ends)
        return torch.stack([off > limits[name] for name, off in self.off.items()]).any(dim=0)

    def truncated(self) -> torch.Tensor:
        return self.motion.ended

    def metrics(self) -> dict[str, torch.Tensor | tuple[torch.Tensor, torch.Tensor]]:
        """Return the mean errors of joints (rad), bodies and anchor (m), and the share of episodes
        that have reached their clip's end, of those that failed or did."""
        reached = self.motion.ended & ~self.failed
        return {**self.errors, "success": (reached.float(), (reached | self.failed).float())}

    def ghost(self) -> torch.Tensor:
        """Return the clip's current pose."""
        return self.motion.now().qpos

    def commands(self) -> dict[str, tuple[torch.Tensor, float, float]]:
        """Return the time of the clip, s: a viewer moves the robot to the frame there."""
        return {"seconds": (self.seconds, 0.0, max(self.motion.seconds))}

    def deployment(self) -> dict[str, Any]:
        """Return the parts of an observation, and the meaning of an action."""
        parts = [
            {"name": part.name, "size": part.values.shape[1], "unit": part.unit}
            | ({"meaning": part.meaning} if part.meaning else {})
            for part in self.seen(self.parts())
        ]
        targets = "default_pose + action_scale * actions, in rad; PD controllers follow them"
        scale = self.action_scale.tolist()
        pairs = zip(self.motion.names, self.motion.seconds, strict=True)
        clips = [{"name": name, "frames": round(s / self.step_dt) + 1} for name, s in pairs]
        facts = {
            "anchor": self.cfg.anchor,
            "bodies": list(self.cfg.bodies),
            "default_pose": self.home.tolist(),
            "action_scale": scale,
            "targets": targets,
        }
        return {"observations": {"actor": parts}, **facts, "clips": clips, "commands": []}

    def deployment_arrays(self) -> dict[str, torch.Tensor]:
        """Return the frames of each clip at the rate of control: `<clip>/qpos` and `qvel`, and by
        mjlab's names those of the motors' joints and of `cfg.bodies`."""
        found, motors = dict[str, torch.Tensor](), self.motors
        for i, name in enumerate(self.motion.names):
            frames = self.motion.frames_of(i)
            bodies = frames.bodies
            arrays = {
                "qpos": frames.qpos,
                "qvel": frames.qvel,
                "joint_pos": frames.qpos[:, motors.places],
                "joint_vel": frames.qvel[:, motors.dofs],
                "body_pos_w": bodies.positions,
                "body_quat_w": bodies.rotations,
                "body_lin_vel_w": bodies.velocities,
                "body_ang_vel_w": bodies.spins,
            }
            found |= {f"{name}/{kind}": values for kind, values in arrays.items()}
        return found


def _angle(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the angles between rotations `(..., 4)`, rad."""
    return rotation_vector(multiply(one, conjugate(other))).norm(dim=-1)


def _mean_square(vectors: torch.Tensor) -> torch.Tensor:
    """Return the mean over bodies of squared lengths of vectors `(num_envs, bodies, 3)`."""
    return vectors.square().sum(dim=2).mean(dim=1)
