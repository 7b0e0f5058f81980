"""Makes the clips of tasks/g1 and tasks/go1 again: what their trained policies do; a squat.

    uv run --group clips examples/robot_clips.py [FOLDER]

The squat is keyframed: the pelvis goes down and up while the feet stay, and mink
(github.com/kevinzakka/mink, Apache-2.0) solves the inverse kinematics.
"""

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import mink
import mujoco
import numpy as np
import torch

from mjfleet.parts.motion.clips import Clip, Robot
from mjfleet.quaternions import conjugate, heading, multiply, rotate
from mjfleet.tools.trained_policy import find_policy, load_policy

TASKS = Path(__file__).parents[1] / "tasks"
RATE = 50.0
COMMANDS = {
    "g1": {"walk": (0.6, 0.0, 0.0), "turn": (0.2, 0.0, 0.8), "sidestep": (0.0, 0.35, 0.0)},
    "go1": {"trot": (0.7, 0.0, 0.0), "turn": (0.3, 0.0, 0.8)},
}
"""Velocity ahead and to the left, m/s, and yaw rate, rad/s, of each clip of each robot."""
WALK_SECONDS = 1.0, 5.0, 1.5
"""Standing, following the command, and standing again, s."""
DEPTH, SQUAT_SECONDS = 0.22, 4.0
"""How far the pelvis goes down, m, and how long it takes to go down and up, s."""
STILL = {
    "noise": 0.0, "push_speed": 0.0, "payload": (0.0, 0.0), "center_of_mass": (0.0, 0.0),
    "gains": (1.0, 1.0), "strength": (1.0, 1.0), "friction": (0.8, 0.8), "delay": (0, 0),
}  # fmt: skip
"""A robot as its model says, on a quiet day."""


def walks(robot: str) -> dict[str, torch.Tensor]:
    """Return the positions of a robot that follows each command, `(frames, nq)`."""
    task = f"{robot}-velocity-flat"
    found, config, trained = find_policy(task, Path("logs"), is_pretrained=True)
    values: Any = config.env
    values = replace(values, num_envs=1, random=replace(values.random, **STILL))
    env: Any
    env, policy, _ = load_policy(found, replace(config, env=values), trained.policy)
    env.command_override = True
    moves = {}
    with torch.inference_mode():
        for name, command in COMMANDS[robot].items():
            env.reset()
            policy.reset()
            frames, begun = [], env.yaw().clone()
            for seconds, share in zip(WALK_SECONDS, (0.0, 1.0, 0.0), strict=True):
                env.command[:] = share * torch.tensor(command)
                env.stands[:] = share == 0.0
                for _ in range(round(seconds * RATE)):
                    if not command[2]:  # It keeps the heading with which it has begun.
                        env.command[:, 2] = share * (torch.sin(begun - env.yaw()))
                    env.step(policy(env.get_observations()))
                    frames.append(env.sim.qpos[0].clone())
            moves[name] = torch.stack(frames)[round(0.5 * RATE) :]  # Once it stands.
    return moves


def squat(model: mujoco.MjModel) -> torch.Tensor:
    """Return the positions of a squat, `(frames, nq)`."""
    configuration = mink.Configuration(model)
    configuration.update_from_keyframe("home")
    feet = [mink.FrameTask(f"{side}_foot", "body", 10.0, 10.0) for side in ("left", "right")]
    pelvis = mink.FrameTask("pelvis", "body", 5.0, 1.0)
    balance = mink.ComTask(np.array((10.0, 10.0, 0.0)))
    posture = mink.PostureTask(model, 0.05)
    tasks = [*feet, pelvis, balance, posture]
    for task in tasks:
        task.set_target_from_configuration(configuration)
    home = configuration.get_transform_frame_to_world("pelvis", "body")
    frames = []
    for i in range(round((SQUAT_SECONDS + 1.0) * RATE) + 1):
        share = min(max(i / RATE - 0.5, 0.0) / SQUAT_SECONDS, 1.0)
        down = np.array((0.0, 0.0, -DEPTH * (1 - math.cos(2 * math.pi * share)) / 2))
        pelvis.set_target(mink.SE3.from_translation(down) @ home)
        for _ in range(10):
            limits = [mink.ConfigurationLimit(model)]
            velocity = mink.solve_ik(configuration, tasks, 0.1, "daqp", 1e-3, limits=limits)
            configuration.integrate_inplace(velocity, 0.1)
        frames.append(torch.from_numpy(configuration.q.copy()))
    return torch.stack(frames)


def write(robot: str, folder: Path) -> None:
    """Write the clips of a robot."""
    model = mujoco.MjModel.from_xml_path(str(TASKS / robot / f"{robot}.xml"))
    folder.mkdir(exist_ok=True, parents=True)
    more = {"squat": squat(model)} if robot == "g1" else {}
    for name, moves in (walks(robot) | more).items():
        # Clips begin above the origin, and look along x.
        back = conjugate(heading(moves[:1, 3:7]))
        places = rotate(back, moves[:, :3] - moves[0, :3] * torch.tensor((1.0, 1.0, 0.0)))
        qpos = torch.cat((places, multiply(back, moves[:, 3:7]), moves[:, 7:]), dim=1)
        path = folder / f"{name}.npz"
        Clip(name, RATE, Robot(model).joints, qpos).write(path)
        print(f"{path}: {(len(qpos) - 1) / RATE:.2f} s, {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    for robot in COMMANDS:
        write(robot, (Path(sys.argv[1]) if len(sys.argv) > 1 else TASKS) / robot / "clips")
