"""Resamples a motion, and computes what follows from its positions by MuJoCo's kinematics."""

from collections.abc import Sequence
from typing import NamedTuple

import mujoco
import numpy as np
import torch

from mjfleet.quaternions import conjugate, from_rotation_vector, multiply, rotate, rotation_vector


class Bodies(NamedTuple):
    """Bodies of a robot, in the world frame: tensors `(frames, bodies, ...)`."""

    positions: torch.Tensor  # Of their origins, m.
    rotations: torch.Tensor  # Quaternions w, x, y, z.
    velocities: torch.Tensor  # Of their origins, m/s.
    spins: torch.Tensor  # Angular velocities, rad/s.


def resample(qpos: torch.Tensor, root: int, rate: float, step_dt: float) -> torch.Tensor:
    """Return positions at multiples of `step_dt` s, from frames at a `rate` of so many a second.

    Args:
        qpos: `(frames, numbers)`. The first seven are those of a free joint, if `root` is not 0.
            Its quaternions are interpolated spherically, all other numbers linearly.
        root: numbers of the free joint.
        rate: frames a second.
        step_dt: s.
    """
    count = int((len(qpos) - 1) / (rate * step_dt) + 1e-6) + 1
    places = (torch.arange(count, dtype=torch.float64) * step_dt * rate).clamp(max=len(qpos) - 1)
    before = places.floor().long().clamp(max=len(qpos) - 2)
    share = (places - before).unsqueeze(1)
    one, other = qpos[before], qpos[before + 1]
    found = one + share * (other - one)
    if root:
        turn = rotation_vector(multiply(conjugate(one[:, 3:7]), other[:, 3:7]))
        found[:, 3:7] = multiply(one[:, 3:7], from_rotation_vector(share * turn))
    return found


def central_differences(qpos: torch.Tensor, root: int, step_dt: float) -> torch.Tensor:
    """Return velocities of positions `(frames, numbers)`, at the ends from one side.

    The angular velocity of a free joint is in the axes of the frame in the middle, as `qvel` is.
    """
    last = len(qpos) - 1
    middle = torch.arange(len(qpos))
    before, after = (middle - 1).clamp(min=0), (middle + 1).clamp(max=last)
    seconds = (after - before).unsqueeze(1) * step_dt
    speeds = (qpos[after] - qpos[before]) / seconds
    if not root:
        return speeds
    turns = qpos[:, 3:7]
    spins = rotation_vector(multiply(turns[after], conjugate(turns[before]))) / seconds
    return torch.cat((speeds[:, :3], rotate(conjugate(turns), spins), speeds[:, 7:]), dim=1)


def forward(
    model: mujoco.MjModel,
    qpos: torch.Tensor,
    bodies: Sequence[int],
    qvel: torch.Tensor | None = None,
) -> Bodies:
    """Return where bodies are and how they move, by positions `(frames, nq)` of a whole model and
    velocities `(frames, nv)`; None: they stand still."""
    data, ids = mujoco.MjData(model), list(bodies)
    roots = model.body_rootid[ids]
    found = tuple(np.zeros((len(qpos), len(ids), size)) for size in (3, 4, 6, 3))
    for i, row in enumerate(qpos.numpy()):
        data.qpos[:] = row
        mujoco.mj_kinematics(model, data)
        found[0][i], found[1][i] = data.xpos[ids], data.xquat[ids]
        if qvel is not None:
            data.qvel[:] = qvel[i].numpy()
            mujoco.mj_comPos(model, data)
            mujoco.mj_comVel(model, data)
            found[2][i], found[3][i] = data.cvel[ids], data.subtree_com[roots]
    positions, rotations, velocities, centres = map(torch.from_numpy, found)
    return Bodies(positions, rotations, *body_velocities(positions, velocities, centres))


def body_velocities(
    positions: torch.Tensor, cvel: torch.Tensor, centres: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return linear velocities of bodies' origins, and angular ones, from MuJoCo's `cvel`, which is
    that of a point at the tree's centre of mass: `(..., 3)`, `(..., 6)` and `(..., 3)`."""
    spins = cvel[..., :3]
    return cvel[..., 3:] + torch.linalg.cross(spins, positions - centres), spins
