"""A legged robot follows velocity commands: forward, to the left, and turning. In a worker.

Terms and numbers are of the kind published with legged_gym (Rudin et al. 2022, arXiv:2109.11978),
Isaac Lab's and mjlab's `velocity` tasks (github.com/isaac-sim/IsaacLab, github.com/mujocolab/mjlab)
and MuJoCo Playground (github.com/google-deepmind/mujoco_playground). Each says which it follows.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import mujoco
import torch

from mjfleet import terms
from mjfleet.env import Delay, Env, History, Timer
from mjfleet.errors import UserError
from mjfleet.legged import mirror
from mjfleet.legged.config import RoughVelocityConfig, VelocityConfig
from mjfleet.legged.deployment import describe
from mjfleet.legged.mirror import Part
from mjfleet.legged.scene import joint_factors, make_robot
from mjfleet.parts import vary

GRAVITY = 9.81
LARGEST_SPEED = 100.0
"""Speed beyond which a simulation diverges, m/s or rad/s; motors reach a third of it."""


class VelocityEnv(Env[VelocityConfig]):
    """Actions move the joints' targets from the pose `home`; PD controllers follow.

    A robot's class sets `model_file` and, where its names differ, `base` and the attributes below.
    docs/tasks.md says what its model must have.
    """

    zero_is_home = True
    base: ClassVar[str] = "trunk"
    """The body that the free joint moves."""
    feet: ClassVar[tuple[str, ...]] = ("FR_foot", "FL_foot", "RR_foot", "RL_foot")
    """Names of geoms, or of bodies."""
    action_factors: ClassVar[Mapping[str, float]] = {}
    """By joint, a factor of `action_scale`; the joints whose names match a regular expression."""
    pose_factors: ClassVar[Mapping[str, float]] = {}
    """Likewise, a factor of the weight of the joint's part of the reward term `pose`."""
    largest_tilt: ClassVar[float] = math.radians(70)
    """Tilt of the base beyond which the robot has fallen, rad: mjlab's limit."""
    events: ClassVar[Collection[str]] = ("fall", "air_time")
    """Reward terms whose weights are per event, not per second."""

    @classmethod
    def make_model(cls, cfg: VelocityConfig) -> mujoco.MjModel:
        """Return the robot of `model_file` on a plane, unless the file has ground of its own."""
        if isinstance(cfg, RoughVelocityConfig):
            raise UserError(
                f"{cls.__name__} has flat ground, but a RoughVelocityConfig; derive it from "
                f"mjfleet.legged.rough_env.RoughVelocityEnv, before {cls.__bases__[0].__name__}."
            )
        return make_robot(cls.model_path(), cls.base, cls.feet)

    def setup(self) -> None:
        sim, model, cfg = self.sim, self.sim.model, self.cfg
        self.home = torch.tensor(model.key("home").qpos, device=self.device, dtype=sim.qpos.dtype)
        self.pose = self.home[7:].float()
        self.lift = torch.tensor((0.0, 0.0, 0.02), device=self.device)
        """Height above the ground at which robots start, m."""
        self.above = 0.8 * self.home[2] * torch.tensor((0.0, 0.0, 1.0), device=self.device)
        # Position, velocity and force of the newest state: views that follow it.
        self.joints, self.speeds = sim.qpos[:, 7:], sim.qvel[:, 6:]
        self.gyro, self.up = sim.sensor("imu_gyro"), sim.sensor("base_up")
        self.velocity, self.fallen = sim.sensor("base_linvel"), sim.sensor("trunk_contact")
        self.on_ground = self.of_feet("contact", 1).squeeze(2)
        self.foot_velocities = self.of_feet("linvel", 3)
        self.contacts = sim.sensor("robot_contact")
        self.frame_of_base = sim.xmat[:, model.body(self.base).id].view(-1, 3, 3)
        self._vary_robots()
        names = "action_factors", "pose_factors"
        self.factors = {name: joint_factors(type(self), name, model) for name in names}
        actions, pose = (torch.tensor(self.factors[name], device=self.device) for name in names)
        self.action_scale, self.pose_weight = cfg.action_scale * actions, pose
        ranges = torch.from_numpy(model.jnt_range[1:]).to(self.device, torch.float32)
        reach = (ranges - self.pose.unsqueeze(1)).abs().amax(dim=1)
        is_limited = torch.from_numpy(model.jnt_limited[1:]).to(self.device).bool()
        reach = torch.where(is_limited, reach / self.action_scale, cfg.largest_action)
        self.action_limit = reach.clamp(max=cfg.largest_action)
        self._declare_state()
        self._prepare_draws()
        self.masses = sim.expand("body_mass")  # A run that resumes restores them.
        self.minutes = torch.full((self.num_envs,), self.step_dt / 60, device=self.device)
        self.next_push = Timer(self, *cfg.random.push_seconds)
        self.motors = Delay(self, self.num_actions, *cfg.random.delay)
        self.frame, self.truth = self.frame_parts(), self.truth_parts()
        amplitudes = [part.noise for part in self.frame for _ in range(part.read().shape[1])]
        self.noise = cfg.random.noise * torch.tensor(amplitudes, device=self.device)
        self.seen = History(self, len(amplitudes), cfg.history)

    def _vary_robots(self) -> None:
        """Make the robots of the environments differ, as `cfg.random` says."""
        cfg, trunk = self.cfg.random, re.escape(self.base)
        feet = [re.escape(foot) for foot in self.feet]
        vary(self, "geom_friction", feet, "set", cfg.friction, together=True)
        vary(self, "body_mass", trunk, "add", cfg.payload)
        vary(self, "body_ipos", trunk, "add", cfg.center_of_mass)
        vary(self, "gains", ".*", "scale", cfg.gains)
        vary(self, "actuator_forcerange", ".*", "scale", cfg.strength)

    def _declare_state(self) -> None:
        self.command = self.add_state("command", 3, reset="keep")
        """Forward and lateral velocity (m/s), yaw rate (rad/s), in the base's frame."""
        self.heading = self.add_state("heading", reset="keep")
        """Commanded heading, where a command names one (rad)."""
        self.has_heading = self.add_state("has_heading", dtype=torch.bool, reset="keep")
        self.stands = self.add_state("stands", dtype=torch.bool, reset="keep")
        self.next_command = Timer(self, *self.cfg.command.seconds)
        feet = len(self.feet)
        self.air_time = self.add_state("air_time", feet)
        """Seconds since each foot left the ground."""
        self.landed = self.add_state("landed", feet, persistent=False)
        """Seconds that a foot which has just landed was in the air, else 0."""
        self.touching = self.add_state("touching", feet, dtype=torch.bool, persistent=False)
        """Which feet are on the ground."""
        self.error = self.add_state("error", 3, persistent=False)
        """Errors from the command: forward, lateral (m/s), yaw rate (rad/s)."""
        self.power = self.add_state("power", persistent=False)
        """Absolute mechanical power of the motors, W."""
        self.diverged = self.add_state("diverged", dtype=torch.bool, persistent=False)
        """Where a speed is greater than a robot can reach."""

    def _prepare_draws(self) -> None:
        # Half the first heading, joints, and velocities of all degrees of freedom.
        still = torch.zeros(self.sim.model.nv, device=self.device)
        start = torch.cat((still[:1], self.pose, still))
        range_ = torch.cat((still[:1] + math.pi / 2, 0.1 + 0 * self.pose, still + 0.3))
        self.start = start - range_, start + range_
        """Smallest and largest of these numbers when an episode begins."""
        command = self.cfg.command
        ranges = command.forward, command.lateral, command.yaw, (-math.pi, math.pi), *[(0, 1)] * 2
        limits = torch.tensor(ranges, dtype=torch.float32, device=self.device)
        self.command_limits = limits[:, 0], limits[:, 1]
        """Those of a new command: its three numbers, the heading, and two that choose its kind."""

    def reset_worlds(self, mask: torch.Tensor) -> None:
        """Start with a random heading, near the pose `home`, moving slowly."""
        sizes = 1, self.num_actions, self.sim.model.nv
        half_yaw, joints, speed = self.uniform(sum(sizes), *self.start).split(sizes, dim=1)
        place = (self.home[:3] + self.spawn_points(mask)).expand(self.num_envs, 3)
        level = self.home[4:6].expand(self.num_envs, 2)
        start = torch.cat((place, half_yaw.cos(), level, half_yaw.sin(), joints), dim=1)
        self.write(mask, self.sim.qpos, start)
        self.write(mask, self.sim.qvel, speed)
        self.renew_commands(mask)

    def spawn_points(self, mask: torch.Tensor) -> torch.Tensor:
        """Return start positions relative to the model's own, `(num_envs, 3)`, m."""
        del mask
        return self.lift

    def apply(self, action: torch.Tensor) -> None:
        torch.add(self.pose, self.action_scale * self.motors(action), out=self.sim.ctrl)
        # A push is a sudden change of velocity, as legged_gym has it.
        limit = self.cfg.random.push_speed
        push = self.uniform(2, -limit, limit) * self.next_push.due.unsqueeze(1)
        self.sim.qvel[:, :2].add_(push)

    def after_physics(self) -> None:
        """Update how long each foot has been in the air, and what rewards and metrics share."""
        torch.gt(self.on_ground, 0, out=self.touching)
        self.air_time += self.step_dt
        has_landed = self.touching & (self.air_time > 1.5 * self.step_dt)
        torch.mul(self.air_time, has_landed, out=self.landed)
        self.air_time.masked_fill_(self.touching, 0.0)
        moves = torch.cat((self.velocity[:, :2], self.gyro[:, 2:]), dim=1)
        torch.sub(moves, self.command, out=self.error)
        self.power[:] = terms.power(self.sim.actuator_force, self.speeds)
        torch.gt(self.sim.qvel.abs().amax(dim=1), LARGEST_SPEED, out=self.diverged)

    def renew_commands(self, mask: torch.Tensor) -> None:
        """Draw new commands where an episode begins, or where it is time. Called in each step."""
        if self.command_override:
            return
        cfg, where = self.cfg.command, mask | self.next_command.due
        drawn = self.uniform(6, *self.command_limits)
        command, heading, kind = drawn[:, :3], drawn[:, 3], drawn[:, 4:]
        stands = kind[:, 0] < cfg.standing_share
        self.write(where, self.stands, stands)
        self.write(where, self.has_heading, (kind[:, 1] < cfg.heading_share) & ~stands)
        self.write(where, self.heading, heading)
        self.write(where, self.command, command.masked_fill(stands.unsqueeze(1), 0.0))

    def steer(self) -> None:
        """Turn towards commanded headings, at a rate from the error, as in Isaac Lab."""
        if self.command_override:
            return
        error = torch.remainder(self.heading - self.yaw() + math.pi, 2 * math.pi) - math.pi
        rate = (0.5 * error).clamp(*self.cfg.command.yaw)
        self.write(self.has_heading, self.command[:, 2], rate)

    def yaw(self) -> torch.Tensor:
        """Return the base's heading, `(num_envs,)`, rad."""
        return torch.atan2(self.frame_of_base[:, 1, 0], self.frame_of_base[:, 0, 0])

    def commands(self) -> dict[str, tuple[torch.Tensor, float, float]]:
        """Return velocities in m/s, forward and to the left, and the yaw rate in rad/s."""
        cfg = self.cfg.command
        ranges = {"forward": cfg.forward, "left": cfg.lateral, "turn_left": cfg.yaw}
        return {name: (self.command[:, i], *ranges[name]) for i, name in enumerate(ranges)}

    def debug_vis(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Draw commanded and measured velocities and yaw rates, in proportion to the robot: 1 m/s
        is twice as long as arrows are above its base, 1 rad/s as long."""
        base, frame = self.sim.model.body(self.base).id, self.frame_of_base
        above = self.sim.xpos[:, base] + self.above
        scale = self.above[2]
        ahead = above + 0.8 * scale * frame[:, :, 0]
        return {
            "command": (above, 2 * scale * _turned(frame, self.command[:, :2])),
            "velocity": (above, 2 * scale * _turned(frame, self.velocity[:, :2])),
            "commanded turn": (ahead, scale * frame[:, :, 1] * self.command[:, 2:]),
            "turn": (ahead, scale * frame[:, :, 1] * self.gyro[:, 2:]),
        }

    def frame_parts(self) -> list[Part]:
        """Return what the robot's sensors measure; the policy sees the newest frames of it.

        Amplitudes of noise are those of legged_gym and Isaac Lab.
        """
        in_base = "in the trunk's frame"
        return [
            Part("gyro", lambda: self.gyro, mirror.ROTATION, 0.2, "rad/s", in_base),
            Part("up", lambda: self.up, mirror.VECTOR, 0.05, "1",
                 f"unit vector against gravity, {in_base}"),
            Part("joint_positions", lambda: self.joints - self.pose, mirror.joints, 0.01, "rad",
                 "less default_pose"),
            Part("joint_velocities", lambda: self.speeds, mirror.joints, 1.5, "rad/s"),
            Part("last_actions", lambda: self.action, mirror.joints,
                 meaning="the newest output of the policy, zeros at first"),
        ]  # fmt: skip

    def truth_parts(self) -> list[Part]:
        """Return what only the value network observes, besides a frame without noise."""
        return [
            Part("velocity", lambda: self.velocity, mirror.VECTOR),
            Part("height", lambda: self.sim.qpos[:, 2:3], mirror.SAME),
            Part("on_ground", lambda: self.touching, mirror.feet),
            Part("air_time", lambda: self.air_time, mirror.feet),
        ]

    def parts(self) -> dict[str, Sequence[Part]]:
        """Return the parts of each group of observations, in order."""
        command = Part("command", lambda: self.command, mirror.COMMAND)
        return {
            "actor": (*self.frame * self.cfg.history, command),
            "critic": (*self.frame, command, *self.truth),
        }

    def observe(self) -> dict[str, torch.Tensor]:
        """Return what the robot's sensors measure; the value network observes more."""
        self.steer()
        frame = torch.cat([part.read() for part in self.frame], dim=1).float()
        noisy = frame + self.noise * self.uniform(frame.shape[1], -1.0, 1.0)
        truth = [part.read() for part in self.truth]
        return {
            "actor": torch.cat((self.seen(noisy), self.command), dim=1),
            "critic": torch.cat((frame, self.command, *truth), dim=1),
        }

    def rewards(self) -> dict[str, torch.Tensor]:
        terms = self.compute(self.reward_terms())
        # The square of one such speed would outweigh all that other environments teach.
        kept = torch.stack(tuple(terms.values())).masked_fill(self.diverged, 0.0)
        return {**dict(zip(terms, kept.unbind(), strict=True)), "fall": terms["fall"]}

    def reward_weights(self) -> dict[str, float]:
        """Return those of `cfg.weights`, 1 for other terms: per second, or per event."""
        weights = vars(self.cfg.weights)
        return {
            name: weights.get(name, 1.0) * (1.0 if name in self.events else self.step_dt)
            for name in self.reward_terms()
        }

    def reward_terms(self) -> dict[str, torch.Tensor | Callable[[], torch.Tensor]]:
        """Return what is rewarded by name; `cfg.weights` has the weights."""
        following = terms.tracking(self.error[:, :2], self.cfg.tracking_width)
        still = torch.where(self.stands, 10.0, 1.0)
        return {
            "linear": following,
            "yaw": lambda: terms.tracking(self.error[:, 2:], self.cfg.tracking_width),
            # mjlab: upright, which also makes living worth while. Playground: a price on a fall.
            "upright": lambda: terms.upright(self.up, math.sqrt(0.2)),
            "fall": self.failed.float(),
            # legged_gym: a trunk that glides.
            "vertical": self.velocity[:, 2].square,
            "tumbling": lambda: terms.squares(self.gyro[:, :2]),
            # legged_gym: motors that live long.
            "torque": lambda: terms.squares(self.sim.actuator_force),
            # Playground: motors that save energy. It counts once the robot follows its command;
            # at once, it would teach the robot to stand still.
            "power": lambda: self.power * following**4,
            "acceleration": lambda: terms.squares(self.sim.qacc[:, 6:]),
            "jerk": lambda: terms.action_rate(self.action, self.previous_action),
            # legged_gym: steps instead of shuffling, unless it is to stand.
            "air_time": lambda: (
                terms.air_time(self.landed, self.cfg.air_seconds, 0.3) * ~self.stands
            ),
            # mjlab: feet that do not slip, a pose to return to.
            "slip": lambda: terms.slip(self.foot_velocities, self.touching),
            "pose": lambda: terms.pose(self.joints, self.pose, self.pose_weight) * still,
            # Isaac Lab: nothing but feet touches the ground.
            "touch": lambda: self.other_contacts().clamp(max=4.0),
        }

    def other_contacts(self) -> torch.Tensor:
        """Return how many contacts with the ground neither feet nor base have, `(num_envs,)`."""
        return (self.contacts - self.fallen).squeeze(1) - self.on_ground.sum(dim=1)

    def terminated(self) -> torch.Tensor:
        """Return where the robot lies upside down or on its belly, or the simulation diverges."""
        tilted = terms.is_tilted(self.up, self.largest_tilt)
        return tilted | (self.fallen[:, 0] > 0) | self.diverged

    def metrics(self) -> dict[str, torch.Tensor | tuple[torch.Tensor, torch.Tensor]]:
        """Return errors in m/s and rad/s, falls per minute, and energy per weight and distance."""
        weight = GRAVITY * self.masses.sum(dim=1)
        return {
            "velocity_error": self.error[:, :2].norm(dim=1),
            "yaw_error": self.error[:, 2].abs(),
            "falls_per_minute": (self.failed.float(), self.minutes),
            "cost_of_transport": (self.power, weight * self.velocity[:, :2].norm(dim=1)),
        }

    def deployment(self) -> dict[str, Any]:
        """Return the parts of an observation, the meaning of an action, the ranges of commands."""
        return describe(self)

    def of_feet(self, name: str, size: int) -> torch.Tensor:
        """Return a view of the values of all feet's sensors, `(num_envs, feet, size)`."""
        if not self.feet:
            raise UserError(f"{type(self).__name__}.feet is empty; it must name one foot or more.")
        count, names = len(self.feet), [f"{foot}_{name}" for foot in self.feet]
        first, *others = (int(self.sim.model.sensor(sensor).adr[0]) for sensor in names)
        if others != [first + size * i for i in range(1, count)]:
            raise UserError(f"the sensors {', '.join(names)} must follow each other in this order.")
        values = self.sim.sensordata[:, first : first + count * size]
        return values.view(self.num_envs, count, size)


def _turned(frame: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    """Rotate vectors in a frame's x-y plane, `(num_envs, 2)`, into the world frame."""
    return (frame[:, :, :2] * flat.to(frame).unsqueeze(1)).sum(dim=2)
