"""Unitree Go1 follows velocity commands: forward, to the left, and turning.

Terms and numbers are of the kind published with legged_gym (Rudin et al. 2022, arXiv:2109.11978),
Isaac Lab's and mjlab's `velocity` tasks (github.com/isaac-sim/IsaacLab, github.com/mujocolab/mjlab)
and MuJoCo Playground (github.com/google-deepmind/mujoco_playground). Each says which it follows.
"""

import math
from typing import Any, ClassVar

import torch

from mjfleet.env import Delay, Env, History, Timer

from .config import Go1Config

LEGS = ("FR", "FL", "RR", "RL")
GRAVITY = 9.81
LARGEST_TILT = math.radians(70)
"""Isaac Lab's limit of the trunk's tilt, beyond which it has fallen over."""


class Go1Env(Env[Go1Config]):
    """Twelve actions move the joints' targets from the standing pose; PD controllers follow."""

    model_file: ClassVar[str] = "flat.xml"

    def setup(self) -> None:
        sim, model, cfg = self.sim, self.sim.model, self.cfg
        self.home = torch.tensor(model.key("home").qpos, device=self.device, dtype=sim.qpos.dtype)
        self.pose = self.home[7:].float()
        self.lift = torch.tensor((0.0, 0.0, 0.02), device=self.device)
        """Height above the ground at which robots start, m."""
        self.above = 10 * self.lift
        """Height above the trunk at which arrows are drawn, m."""
        # Position, velocity and force of the newest state: views that follow it.
        self.joints, self.speeds = sim.qpos[:, 7:], sim.qvel[:, 6:]
        self.gyro, self.up = sim.sensor("imu_gyro"), sim.sensor("base_up")
        self.velocity, self.fallen = sim.sensor("base_linvel"), sim.sensor("trunk_contact")
        self.on_ground = self._of_feet("foot_contact", 1).squeeze(2)
        self.foot_velocities = self._of_feet("foot_linvel", 3)
        self.contacts = sim.sensor("robot_contact")
        self._vary_models()

        self.command = torch.zeros(self.num_envs, 3, device=self.device)
        """Forward and lateral velocity (m/s), yaw rate (rad/s), in the trunk's frame."""
        self.heading = torch.zeros(self.num_envs, device=self.device)
        """Commanded heading, where a command names one (rad)."""
        self.has_heading = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        self.stands = torch.zeros_like(self.has_heading)
        self.previous = torch.zeros_like(self.action)
        """The previous action."""
        self.air_time = torch.zeros(self.num_envs, 4, device=self.device)
        """Seconds since each foot left the ground."""
        self.landed = torch.zeros_like(self.air_time)
        """Seconds that a foot which has just landed was in the air, else 0."""
        self.next_command = Timer(self, *cfg.command.seconds)
        self.next_push = Timer(self, *cfg.random.push_seconds)
        self.motors = Delay(self, self.num_actions, *cfg.random.delay)
        # Amplitudes of legged_gym's and Isaac Lab's: gyroscope (rad/s), gravity, angles, speeds.
        amplitudes = [0.2] * 3 + [0.05] * 3 + [0.01] * 12 + [1.5] * 12 + [0.0] * 12
        self.noise = cfg.random.noise * torch.tensor(amplitudes, device=self.device)
        self.seen = History(self, len(amplitudes), cfg.history)

    def reset_worlds(self, mask: torch.Tensor) -> None:
        """Start with a random heading, near the standing pose, moving slowly."""
        start = self.home.expand(self.num_envs, -1).clone()
        start[:, :3] += self.spawn_points(mask)
        half_yaw = self.uniform(1, -math.pi / 2, math.pi / 2)
        start[:, 3:4], start[:, 6:7] = half_yaw.cos(), half_yaw.sin()
        start[:, 7:] += self.uniform(12, -0.1, 0.1)
        speed = self.uniform(self.sim.model.nv, -0.3, 0.3)
        world = mask.unsqueeze(1)
        self.sim.qpos[:] = torch.where(world, start, self.sim.qpos)
        self.sim.qvel[:] = torch.where(world, speed, self.sim.qvel)
        for kept in (self.previous, self.air_time, self.landed):
            kept.masked_fill_(world, 0.0)
        for part in (self.motors, self.seen, self.next_push, self.next_command):
            part.reset(mask)
        # This runs in every step, so that commands may change in the midst of an episode.
        renewed = mask | self.next_command()
        if not self.command_override:
            self._draw_commands(renewed)

    def spawn_points(self, mask: torch.Tensor) -> torch.Tensor:
        """Return start positions relative to the model's own, `(num_envs, 3)`, m."""
        del mask
        return self.lift

    def apply(self, action: torch.Tensor) -> None:
        self.sim.ctrl[:] = self.pose + self.cfg.action_scale * self.motors(action)
        # A push is a sudden change of velocity, as legged_gym has it.
        limit = self.cfg.random.push_speed
        push = self.uniform(2, -limit, limit).masked_fill(~self.next_push().unsqueeze(1), 0.0)
        self.sim.qvel[:, :2] += push

    def observe(self) -> dict[str, torch.Tensor]:
        """Return what the robot's sensors measure; the value network observes more."""
        self._steer()
        offsets = self.joints - self.pose
        frame = torch.cat((self.gyro, self.up, offsets, self.speeds, self.action), dim=1).float()
        noisy = frame + self.noise * self.uniform(frame.shape[1], -1.0, 1.0)
        truth = (self.velocity, self.sim.qpos[:, 2:3], self.on_ground > 0, self.air_time)
        return {
            "actor": torch.cat((self.seen(noisy), self.command), dim=1),
            "critic": torch.cat((frame, self.command, *truth), dim=1),
        }

    def rewards(self) -> dict[str, torch.Tensor]:
        """Return weighted terms, per second."""
        self._time_steps()
        w, width = self.cfg.weights, self.cfg.tracking_width
        off, turning = self._errors()
        touching = self.on_ground > 0
        slip = self.foot_velocities[:, :, :2].square().sum(dim=2) * touching
        far = (self.joints - self.pose).square().sum(dim=1)
        steps = (self.landed - self.cfg.air_seconds).clamp(0.0, 0.3).sum(dim=1)
        steps = steps.masked_fill(self.stands, 0.0)
        others = (self.contacts - self.fallen).squeeze(1) - self.on_ground.sum(dim=1)
        following = torch.exp(-off.square().sum(dim=1) / width**2)
        terms = {
            "linear": w.linear * following,
            "yaw": w.yaw * torch.exp(-turning.square() / width**2),
            # mjlab: upright, which also makes living worth while. Playground: a price on a fall.
            "upright": w.upright * torch.exp(-self.up[:, :2].square().sum(dim=1) / 0.2),
            "fall": w.fall * self.terminated() / self.step_dt,
            # legged_gym: a trunk that glides.
            "vertical": w.vertical * self.velocity[:, 2].square(),
            "tumbling": w.tumbling * self.gyro[:, :2].square().sum(dim=1),
            # legged_gym: motors that live long.
            "torque": w.torque * self.sim.actuator_force.square().sum(dim=1),
            # Playground: motors that save energy. It counts once the robot follows its command;
            # at once, it would teach the robot to stand still.
            "power": w.power * self._power() * following**4,
            "acceleration": w.acceleration * self.sim.qacc[:, 6:].square().sum(dim=1),
            "jerk": w.jerk * (self.action - self.previous).square().sum(dim=1),
            # legged_gym: steps instead of shuffling, unless it is to stand.
            "air_time": w.air_time * steps / self.step_dt,
            # mjlab: feet that do not slip, a pose to return to.
            "slip": w.slip * slip.sum(dim=1),
            "pose": w.pose * far * torch.where(self.stands, 10.0, 1.0),
            # Isaac Lab: nothing but feet touches the ground.
            "touch": w.touch * others.clamp(max=4.0),
        }
        self.previous.copy_(self.action)
        return {name: term * self.step_dt for name, term in terms.items()}

    def terminated(self) -> torch.Tensor:
        """Return where the robot lies upside down or on its belly."""
        tilted = self.up[:, 2] < math.cos(LARGEST_TILT)
        return tilted | (self.fallen[:, 0] > 0)

    def metrics(self) -> dict[str, torch.Tensor | tuple[torch.Tensor, torch.Tensor]]:
        """Return errors in m/s and rad/s, falls per minute, and energy per weight and distance."""
        off, turning = self._errors()
        power = self._power()
        speed = self.velocity[:, :2].norm(dim=1)
        minutes = torch.full_like(speed, self.step_dt / 60)
        return {
            "velocity_error": off.norm(dim=1),
            "yaw_error": turning.abs(),
            "falls_per_minute": (self.terminated().to(speed), minutes),
            "cost_of_transport": (power, self.masses * GRAVITY * speed),
        }

    def commands(self) -> dict[str, tuple[torch.Tensor, float, float]]:
        """Return velocities in m/s, forward and to the left, and the yaw rate in rad/s."""
        told = self.cfg.command
        ranges = {"forward": told.forward, "left": told.lateral, "turn_left": told.yaw}
        return {name: (self.command[:, i], *ranges[name]) for i, name in enumerate(ranges)}

    def debug_vis(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Draw commanded and measured velocity (0.5 m per m/s) and yaw rate (0.25 m per rad/s)."""
        trunk = self.sim.model.body("trunk").id
        frame = self.sim.xmat[:, trunk].view(-1, 3, 3)
        above = self.sim.xpos[:, trunk] + self.above
        ahead = above + 0.2 * frame[:, :, 0]
        return {
            "command": (above, 0.5 * _turned(frame, self.command[:, :2])),
            "velocity": (above, 0.5 * _turned(frame, self.velocity[:, :2])),
            "commanded turn": (ahead, 0.25 * frame[:, :, 1] * self.command[:, 2:]),
            "turn": (ahead, 0.25 * frame[:, :, 1] * self.gyro[:, 2:]),
        }

    def deployment(self) -> dict[str, Any]:
        """Return the parts of an observation, the meaning of an action, the ranges of commands."""
        cfg, told = self.cfg, self.cfg.command
        frame = [
            {"name": "gyro", "size": 3, "unit": "rad/s", "meaning": "in the trunk's frame"},
            {"name": "up", "size": 3, "unit": "1",
             "meaning": "unit vector against gravity, in the trunk's frame"},
            {"name": "joint_positions", "size": 12, "unit": "rad", "meaning": "less default_pose"},
            {"name": "joint_velocities", "size": 12, "unit": "rad/s"},
            {"name": "last_actions", "size": 12, "unit": "1",
             "meaning": "the newest output of the policy, zeros at first"},
        ]  # fmt: skip
        commands = [
            {"name": "forward", "size": 1, "unit": "m/s", "range": told.forward},
            {"name": "left", "size": 1, "unit": "m/s", "range": told.lateral},
            {"name": "turn_left", "size": 1, "unit": "rad/s", "range": told.yaw},
        ]
        frames = {
            "name": "frames",
            "size": self.seen.past[0].numel(),
            "history": cfg.history,
            "meaning": "one of each control step, the oldest first; the first fills all places",
            "parts": frame,
        }
        command = {"name": "command", "size": 3, "parts": commands}
        return {
            "observations": {"actor": [frames, command]},
            "action_scale": cfg.action_scale,
            "targets": "default_pose + action_scale * actions, in rad, without delay or limits; PD "
            "controllers with kp and kv follow them",
        }

    def yaw(self) -> torch.Tensor:
        """Return the trunk's heading, `(num_envs,)`, rad."""
        w, x, y, z = self.sim.qpos[:, 3:7].unbind(dim=1)
        return torch.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))

    def _errors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the errors from the command: `(num_envs, 2)`, m/s, and `(num_envs,)`, rad/s."""
        return self.velocity[:, :2] - self.command[:, :2], self.gyro[:, 2] - self.command[:, 2]

    def _power(self) -> torch.Tensor:
        """Return the absolute mechanical power of the motors, `(num_envs,)`, W."""
        return (self.sim.actuator_force * self.speeds).abs().sum(dim=1)

    def _time_steps(self) -> None:
        """Update how long each foot has been in the air."""
        touching = self.on_ground > 0
        self.air_time += self.step_dt
        self.landed.copy_(self.air_time * (touching & (self.air_time > 1.5 * self.step_dt)))
        self.air_time.masked_fill_(touching, 0.0)

    def _draw_commands(self, mask: torch.Tensor) -> None:
        """Draw new commands where `mask` is true."""
        cfg, world = self.cfg.command, mask.unsqueeze(1)
        ranges = (cfg.forward, cfg.lateral, cfg.yaw)
        drawn = torch.cat([self.uniform(1, *limits) for limits in ranges], dim=1)
        kind = self.uniform(2, 0.0, 1.0)
        stands = kind[:, 0] < cfg.standing_share
        drawn = drawn.masked_fill(stands.unsqueeze(1), 0.0)
        self.stands = torch.where(mask, stands, self.stands)
        self.has_heading = torch.where(
            mask, (kind[:, 1] < cfg.heading_share) & ~stands, self.has_heading
        )
        heading = self.uniform(1, -math.pi, math.pi).squeeze(1)
        self.heading = torch.where(mask, heading, self.heading)
        self.command = torch.where(world, drawn, self.command)

    def _steer(self) -> None:
        """Compute the yaw rate from the heading error, as Isaac Lab does."""
        if self.command_override:
            return
        error = torch.remainder(self.heading - self.yaw() + math.pi, 2 * math.pi) - math.pi
        rate = (0.5 * error).clamp(*self.cfg.command.yaw).to(self.command)
        self.command[:, 2] = torch.where(self.has_heading, rate, self.command[:, 2])

    def _vary_models(self) -> None:
        """Vary the robot of each environment, once, by the worker's seed."""
        sim, cfg, trunk = self.sim, self.cfg.random, self.sim.model.body("trunk").id
        feet = [sim.model.geom(f"{leg}_foot").id for leg in LEGS]
        sim.expand("geom_friction")[:, feet, 0] = self.uniform(1, *cfg.friction).to(sim.qpos)
        sim.expand("body_mass")[:, trunk] += self.uniform(1, *cfg.payload).squeeze(1)
        sim.expand("body_ipos")[:, trunk] += self.uniform(3, *cfg.center_of_mass)
        gains = self.uniform(12, *cfg.gains).unsqueeze(2)
        sim.expand("actuator_gainprm")[:, :, :1] *= gains
        sim.expand("actuator_biasprm")[:, :, 1:3] *= gains
        sim.expand("actuator_forcerange")[:] *= self.uniform(12, *cfg.strength).unsqueeze(2)
        sim.set_const()
        self.masses = sim.expand("body_mass").sum(dim=1)

    def _of_feet(self, name: str, size: int) -> torch.Tensor:
        """Return the values of the four legs' sensors, `(num_envs, 4, size)`."""
        first = int(self.sim.model.sensor(f"{LEGS[0]}_{name}").adr[0])
        return self.sim.sensordata[:, first : first + 4 * size].view(self.num_envs, 4, size)


def _turned(frame: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    """Rotate vectors in a frame's x-y plane, `(num_envs, 2)`, into the world frame."""
    return (frame[:, :, :2] @ flat.to(frame).unsqueeze(2)).squeeze(2)
