"""A Franka Panda that lifts a cube to commanded places."""

from typing import Any, ClassVar

import torch

from .arm import PandaEnv
from .config import LiftConfig

HALF = 0.02
"""Half the cube's side, m."""
LIFTED = 0.04
"""Height of the cube's centre from which on it counts as lifted, m: Isaac Lab's."""
DAMPING = 0.05
"""Damping of the joints' steps, against fast motion where the arm is nearly straight."""


class LiftEnv(PandaEnv[LiftConfig]):
    """Five actions move the hand, turn it and close it, to bring a cube to a commanded place.

    The first three are the velocity of the hand, which points down, the fourth is its turning, and
    the fifth the speed of the fingers' target.
    """

    model_file: ClassVar[str] = "lift.xml"
    limits: ClassVar[tuple[float, ...]] = (1.7, 1.7, 1.7, 2.5, 0.2)
    centre: ClassVar[tuple[float, float, float]] = (0.5, 0.0, 0.3)

    def setup(self) -> None:
        super().setup()
        sim = self.sim
        self.cube, self.cube_x = sim.sensor("cube_position"), sim.sensor("cube_x")
        self.command = self.add_state("command", 3, reset="keep")
        """The cube's goal, forward, left and up from `centre`, m."""
        self.down = torch.tensor((0.0, 0.0, -1.0), device=self.device, dtype=sim.qpos.dtype)
        amplitudes = [0.01] * 7 + [0.0005] + [0.01] * 8 + [0.002] * 9 + [0.02] * 2 + [0.0] * 5
        self.noise = self.cfg.noise * torch.tensor(amplitudes, device=self.device)

    def reset_worlds(self, mask: torch.Tensor) -> None:
        cfg, world = self.cfg, mask.unsqueeze(1)
        self.start_arm(mask)
        place = torch.cat((self.uniform(1, *cfg.cube.forward), self.uniform(1, *cfg.cube.left)), 1)
        qpos = self.sim.qpos
        qpos[:, 9:11] = torch.where(world, qpos[:, 9:11] + place, qpos[:, 9:11])
        half = 0.5 * self.uniform(1, *cfg.cube.turn)
        turn = torch.cat((half.cos(), 0 * half, 0 * half, half.sin()), dim=1).to(qpos)
        qpos[:, 12:16] = torch.where(world, turn, qpos[:, 12:16])
        goal = [self.uniform(1, *each) for each in (cfg.goal.forward, cfg.goal.left, cfg.goal.up)]
        if not self.command_override:
            self.command[:] = torch.where(world, torch.cat(goal, dim=1), self.command)

    def apply(self, action: torch.Tensor) -> None:
        """Move the joints so that the hand moves as the action says, by damped least squares."""
        wanted = self.stride * action.clamp(-1.0, 1.0)
        # The hand goes no lower than the cube's centre: what presses on the table learns nothing.
        wanted[:, 2] = wanted[:, 2].maximum(HALF - self.hand[:, 2])
        upright = 0.1 * torch.linalg.cross(self.axes[:, 2], self.down.expand(self.num_envs, 3))
        upright[:, 2] += wanted[:, 3]
        twist = torch.cat((wanted[:, :3], upright), dim=1)
        self.move(damped_least_squares(self.jacobian(), twist))
        fingers = self.sim.ctrl[:, 7:] + wanted[:, 4:]
        self.sim.ctrl[:, 7:] = fingers.clamp(self.low[7:], self.high[7:])

    def observe(self) -> dict[str, torch.Tensor]:
        goal = self.middle + self.command
        self.sim.mocap_pos[:, 0] = goal
        qpos, qvel, x, y = self.sim.qpos, self.sim.qvel, self.axes[:, 0], self.axes[:, 1]
        # The cube is the same after a quarter turn.
        turn = 4 * torch.atan2((self.cube_x * y).sum(dim=1), (self.cube_x * x).sum(dim=1))
        parts = (qpos[:, :7] - self.home[:7], qpos[:, 7:8], qvel[:, :8], self.hand - self.middle,
                 self.cube - self.hand, goal - self.cube, torch.stack((turn.cos(), turn.sin()), 1),
                 self.action)  # fmt: skip
        state = torch.cat(parts, dim=1).float()
        noisy = state + self.noise * self.uniform(state.shape[1], -1.0, 1.0)
        return {"actor": noisy, "critic": state}

    def rewards(self) -> dict[str, torch.Tensor]:
        """Return weighted terms, per second. Isaac Lab's task has all but grasp and effort."""
        w = self.cfg.weights
        near, distance = (self.cube - self.hand).norm(dim=1), self.goal_distance()
        # The hand can be this near only with the cube between its fingers, which have to be open
        # until then: above the cube, at a distance of 3 cm, closing them earns little.
        around = (1 + (near / 0.015).square()).pow(-2)
        closed = (2 - self.sim.qpos[:, 7] / HALF).clamp(max=1.0)
        # Counted as far as it is held: a cube that stands on its edge is higher, too.
        lifted = around * closed * ((self.cube[:, 2] - HALF) / 0.1).clamp(max=1.0)
        terms = {
            "near": w.near * (1 - torch.tanh(near / 0.2)),
            "grasp": w.grasp * around * (1 + closed) / 2,
            "lift": w.lift * lifted,
            "goal": w.goal * lifted * (1 - torch.tanh(distance / 0.3)),
            "at_goal": w.at_goal * lifted / (1 + (distance / 0.05).square()),
            "effort": w.effort * self.action.square().sum(dim=1),
            "jerk": w.jerk * (self.action - self.previous_action).square().sum(dim=1),
        }
        return {name: term * self.step_dt for name, term in terms.items()}

    def metrics(self) -> dict[str, torch.Tensor | tuple[torch.Tensor, torch.Tensor]]:
        """Return, at the end of episodes, the share of cubes within 5 cm of the goal, that of those
        in the air, and the distance in m."""
        ends = (self.episode_length_buf >= self.max_episode_length).float()
        distance, lifted = self.goal_distance(), self.cube[:, 2] > LIFTED
        return {
            "success": (ends * (distance < 0.05), ends),
            "lifted": (ends * lifted, ends),
            "goal_distance": (ends * distance, ends),
        }

    def commands(self) -> dict[str, tuple[torch.Tensor, float, float]]:
        """Return the cube's goal in m, as `command` has it."""
        g = self.cfg.goal
        ranges = {"forward": g.forward, "left": g.left, "up": g.up}
        return {name: (self.command[:, i], *ranges[name]) for i, name in enumerate(ranges)}

    def deployment(self) -> dict[str, Any]:
        """Return the parts of an observation, and what an action means."""
        parts = {
            "joint_positions": (7, "less default_pose, rad"),
            "finger_position": (1, "of the left one, m"),
            "velocities": (8, "of joints and finger, rad/s and m/s"),
            "hand": (3, "the tool centre point from `centre`, in the base's axes, m"),
            "cube": (3, "its centre from the tool centre point, m"),
            "goal": (3, "from the cube's centre, m"),
            "cube_turn": (2, "cosine and sine of four times its angle from the hand's"),
            "last_actions": (5, "the newest output of the policy, zeros at first"),
        }
        moves = "the hand moves by the first three and turns by the fourth of stride * actions in "
        fingers = "each step, m and rad, by damped least squares; the fingers' target by the fifth"
        return {**self.describe(parts), "targets": moves + fingers}

    def goal_distance(self) -> torch.Tensor:
        """Return the cube's distance from its goal, `(num_envs,)`, m."""
        return (self.middle + self.command - self.cube).norm(dim=1).float()


def damped_least_squares(jacobian: torch.Tensor, twist: torch.Tensor) -> torch.Tensor:
    """Return the steps of the joints, `(num_envs, 7)`, for a step of the hand, `(num_envs, 6)`.

    Args:
        jacobian: of the hand's position and orientation, transposed, `(num_envs, 7, 6)`.
        twist: m and rad.
    """
    # Conjugate gradients, since a solver of LAPACK's kind would wait for the device.
    identity = torch.eye(6, device=jacobian.device, dtype=jacobian.dtype)
    # Sums of products, since TF32 would round a product of matrices to three digits on a GPU.
    square = (jacobian.unsqueeze(3) * jacobian.unsqueeze(2)).sum(1) + DAMPING**2 * identity
    x, rest = torch.zeros_like(twist), twist
    way, size = rest, (rest * rest).sum(1, keepdim=True)
    for _ in range(6):
        ahead = (square * way.unsqueeze(1)).sum(2)
        length = size / (way * ahead).sum(1, keepdim=True).clamp(min=1e-20)
        x, rest = x + length * way, rest - length * ahead
        size, before = (rest * rest).sum(1, keepdim=True), size
        way = rest + size / before.clamp(min=1e-20) * way
    return (jacobian * x.unsqueeze(1)).sum(2)
