"""Usual terms of rewards, terminations and observations: plain functions of tensors.

Each takes tensors whose first dimension is the environment and returns `(num_envs,)`, unless it
says otherwise; none has a weight, a sign or the duration of a step in it. Formulas are those of
legged_gym (Rudin et al. 2022, arXiv:2109.11978), Isaac Lab 3.0 (`isaaclab.envs.mdp`), mjlab 1.6
(`mjlab.envs.mdp`, `mjlab.tasks.velocity.mdp`) and MuJoCo Playground's locomotion; each function
says whose. docs/migrate.md has their names.
"""

import math

import torch

from mjfleet import quaternions

# Rewards.


def tracking(error: torch.Tensor, width: float) -> torch.Tensor:
    """Return exp(-|error|^2 / width^2) of errors `(num_envs, n)`: 1 without an error, 1/e at
    `width`, in the error's unit. Isaac Lab's `track_lin_vel_xy_exp` and `std`; legged_gym's
    `tracking_sigma` is the square of the width."""
    return torch.exp(squares(error) / -(width**2))


def upright(up: torch.Tensor, width: float) -> torch.Tensor:
    """Return exp(-sin^2(tilt) / width^2); `up` is the world's z axis in the base's frame,
    `(num_envs, 3)`. mjlab's `upright`."""
    return tracking(up[:, :2], width)


def squares(values: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares of values `(num_envs, n)`, in their unit squared: of torques (N m),
    joint accelerations (rad/s^2), roll and pitch rates (rad/s). Isaac Lab's and mjlab's `*_l2`."""
    return values.square().sum(dim=1)


def height(z: torch.Tensor, target: float) -> torch.Tensor:
    """Return (z - target)^2 of heights `(num_envs,)`, m^2; `target` is in m. Isaac Lab's
    `base_height_l2`."""
    return (z - target).square()


def action_rate(action: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
    """Return |a(t) - a(t - 1)|^2 of actions `(num_envs, n)`. legged_gym's `action_rate`."""
    return squares(action - previous)


def action_acceleration(
    action: torch.Tensor, previous: torch.Tensor, before: torch.Tensor
) -> torch.Tensor:
    """Return |a(t) - 2 a(t - 1) + a(t - 2)|^2 of actions `(num_envs, n)`. mjlab's `action_acc_l2`.

    `before` is state of the task's own: `History(self, self.num_actions, 3)` holds it.
    """
    return squares(action - 2 * previous + before)


def joint_limits(
    joints: torch.Tensor, low: torch.Tensor, high: torch.Tensor, share: float = 0.9
) -> torch.Tensor:
    """Return by how much joints `(num_envs, n)` are beyond their limits, rad or m, summed.

    `low` and `high`, `(n,)`, are moved together to a `share` of their range. legged_gym's
    `dof_pos_limits` and `soft_dof_pos_limit`; 0.9 is that of Isaac Lab's and mjlab's Go1.
    """
    middle, half = (low + high) / 2, share * (high - low) / 2
    return ((joints - middle).abs() - half).clamp(min=0.0).sum(dim=1)


def power(forces: torch.Tensor, speeds: torch.Tensor) -> torch.Tensor:
    """Return the absolute mechanical power of motors, the sum of |force * speed|, W.

    Both are `(num_envs, n)`: N m and rad/s, or N and m/s, of the same n motors, as
    `sim.actuator_force` and `sim.actuator_velocity` are. Playground's `energy`.

    Raises:
        ValueError: their numbers differ, as those of motors and joints may.
    """
    if forces.shape != speeds.shape:
        raise ValueError(
            f"power: {speeds.shape[1]} speeds for {forces.shape[1]} forces; both must be those of "
            "the same motors."
        )
    return (forces * speeds).abs().sum(dim=1)


def pose(
    joints: torch.Tensor, target: torch.Tensor, weights: torch.Tensor | float = 1.0
) -> torch.Tensor:
    """Return the sum of weights * (joints - target)^2, rad^2 or m^2.

    Joints are `(num_envs, n)`, target and weights `(n,)`. Playground's `pose` of humanoids; mjlab's
    `posture` is exp(-pose) with weights 1 / (n std^2).
    """
    return ((joints - target).square() * weights).sum(dim=1)


def slip(velocities: torch.Tensor, touching: torch.Tensor) -> torch.Tensor:
    """Return the sum of the squared horizontal speeds of feet that touch the ground, (m/s)^2.

    Velocities are `(num_envs, feet, 3)` in the world's frame, `touching` is `(num_envs, feet)`,
    bool. mjlab's `feet_slip`, which counts only under a command.
    """
    return (velocities[:, :, :2].square().sum(dim=2) * touching).sum(dim=1)


def air_time(landed: torch.Tensor, least: float, most: float = math.inf) -> torch.Tensor:
    """Return by how much feet that have just landed were longer in the air than `least`, in s.

    `landed` `(num_envs, feet)` is the time in the air, in s, of feet that land in this step, else
    0. A foot counts at most `most` s, one below `least` nothing. An event, not a rate: a weight per
    event is not multiplied by the duration of a step. legged_gym's `feet_air_time`, where shorter
    times are negative and nothing is cut; Playground's humanoids have a `most`.
    """
    return (landed - least).clamp(0.0, most).sum(dim=1)


def clearance(heights: torch.Tensor, velocities: torch.Tensor, target: float) -> torch.Tensor:
    """Return the sum over feet of |height - target| * horizontal speed, m^2/s.

    Heights are `(num_envs, feet)`, in m, velocities `(num_envs, feet, 3)`, in m/s. mjlab's
    `feet_clearance`, which counts only under a command if it has the command's name.
    """
    return ((heights - target).abs() * velocities[:, :, :2].norm(dim=2)).sum(dim=1)


def stumbling(forces: torch.Tensor, ratio: float = 5.0) -> torch.Tensor:
    """Return the number of feet that hit a wall: whose contact force `(num_envs, feet, 3)`, in the
    world's frame, is more than `ratio` times as large horizontally as vertically. legged_gym's
    `stumble` is 1 where any does."""
    is_wall = forces[:, :, :2].norm(dim=2) > ratio * forces[:, :, 2].abs()
    return is_wall.sum(dim=1).float()


def alive(failed: torch.Tensor) -> torch.Tensor:
    """Return 1 where an environment has not `failed`, else 0; `failed` is `self.failed`,
    `(num_envs,)`, bool. Isaac Lab's `is_alive`."""
    return (~failed).float()


# Terminations, `(num_envs,)`, bool.


def is_tilted(up: torch.Tensor, largest: float) -> torch.Tensor:
    """Return where the base is tilted by more than `largest` rad; `up` as in `upright`. Isaac Lab's
    `bad_orientation`."""
    return up[:, 2] < math.cos(largest)


def is_low(z: torch.Tensor, least: float) -> torch.Tensor:
    """Return where a height `(num_envs,)` is below `least`, m. Isaac Lab's
    `root_height_below_minimum`."""
    return z < least


def touches(found: torch.Tensor) -> torch.Tensor:
    """Return where any of the contact sensors, `(num_envs, n)`, has found a contact. Isaac Lab's
    `illegal_contact`, whatever the force is."""
    return (found > 0).any(dim=1)


# Observations, `(num_envs, n)`.


def projected_gravity(quaternion: torch.Tensor) -> torch.Tensor:
    """Return the unit vector of gravity in a body's frame, `(num_envs, 3)`, from its orientation
    `(num_envs, 4)`: w, x, y, z. All three's `projected_gravity`."""
    w, x, y, z = quaternion.unbind(dim=1)
    return torch.stack((2 * (w * y - x * z), -2 * (y * z + w * x), 2 * (x * x + y * y) - 1), dim=1)


def in_frame(quaternion: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """Return a vector of the world, `(num_envs, 3)`, in the frame of a body, from its orientation
    `(num_envs, 4)`.

    The linear velocity of a free joint, `sim.qvel[:, :3]`, is of the world; its angular velocity,
    `sim.qvel[:, 3:6]`, is in the body's frame already. All three's `base_lin_vel`.
    """
    vector = vector.to(quaternion.dtype)  # A task's state is float32, MuJoCo's float64.
    return quaternions.rotate(quaternions.conjugate(quaternion), vector)


def phase(steps: torch.Tensor, step_dt: float, period: float) -> torch.Tensor:
    """Return sine and cosine of a gait's phase, `(num_envs, 2)`, which takes `period` seconds.

    `steps` is `env.episode_length_buf`, `step_dt` is in s. Isaac Lab's `gait_phase` (in
    `contrib.dr_legs`); Playground's humanoids have one for each foot, the cosine first.
    """
    angle = steps * (2 * math.pi * step_dt / period)
    return torch.stack((angle.sin(), angle.cos()), dim=1)
