"""A robot's mirror image: left and right change places. Which joints do follows from the model."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import mujoco
import numpy as np
import torch
from tensordict import TensorDict

from mjfleet.errors import UserError

Map = tuple[list[int], list[float]]
"""Which of a part's numbers the image takes, and their signs."""

Image = Map | Callable[[Any], Map]
"""A map, or what returns it for an environment whose model it depends on."""

SAME: Map = [0], [1.0]
VECTOR: Map = [0, 1, 2], [1.0, -1.0, 1.0]
ROTATION: Map = [0, 1, 2], [-1.0, 1.0, -1.0]
COMMAND: Map = [0, 1, 2], [1.0, -1.0, -1.0]

NEAR = 0.02
"""How far a joint may be from the mirror image of another, m."""


def mirror(
    env: Any, obs: TensorDict | None, actions: torch.Tensor | None
) -> tuple[TensorDict | None, torch.Tensor | None]:
    """Return observations and actions `(samples, size)`, followed by their mirror images.

    `env` is a VelocityEnv.

    Raises:
        UserError: the robot has no mirror symmetry.
    """
    if obs is not None:
        images = {
            name: _image(obs.get(name), *[_map(part.image, env) for part in parts])
            for name, parts in env.parts().items()
        }
        obs = TensorDict.cat((obs, TensorDict(images, batch_size=obs.batch_size)))
    if actions is not None:
        actions = torch.cat((actions, _image(actions, joints(env))))
    return obs, actions


def joints(env: Any) -> Map:
    """Return the image of numbers of all joints, of a VelocityEnv's model."""
    return joint_images(env.sim.model)


def feet(env: Any) -> Map:
    """Return the image of numbers of all feet, of a VelocityEnv's model."""
    return foot_images(env.sim.model, tuple(env.feet))


@lru_cache
def joint_images(model: mujoco.MjModel) -> Map:
    """Return which joint, from the second on, is the mirror image of each, and in which direction.

    In the position in which all angles are 0, a joint is the image of another if its place and axis
    are. It turns the same way for the same angle, or the other way.

    Raises:
        UserError: a joint has no image, or the pose `home` is not its own image.
    """
    data, base = mujoco.MjData(model), model.jnt_bodyid[0]
    mujoco.mj_kinematics(model, data)
    rotation = data.xmat[base].reshape(3, 3)
    places = (data.xanchor[1:] - data.xpos[base]) @ rotation
    axes = data.xaxis[1:] @ rotation
    index, signs = [], []
    for i, (place, axis) in enumerate(zip(places, axes, strict=True)):
        turns = axes @ (axis * ROTATION[1])
        off = np.linalg.norm(places - place * VECTOR[1], axis=1) + 1 - np.abs(turns)
        nearest = int(off.argmin())
        if off[nearest] > NEAR:
            _refuse(f"{model.joint(i + 1).name} is not the mirror image of any joint")
        index.append(nearest)
        signs.append(float(np.sign(turns[nearest])))
    pose = model.key("home").qpos[7:]
    if wrong := np.flatnonzero(np.abs(pose[index] * signs - pose) > 0.01).tolist():
        _refuse(f"in the pose `home`, {model.joint(wrong[0] + 1).name} differs from its image")
    return index, signs


@lru_cache
def foot_images(model: mujoco.MjModel, feet: tuple[str, ...]) -> Map:
    """Return which foot is the mirror image of each: the nearest to its place in pose `home`."""
    data, base = mujoco.MjData(model), model.jnt_bodyid[0]
    mujoco.mj_resetDataKeyframe(model, data, model.key("home").id)
    mujoco.mj_kinematics(model, data)
    geoms = {model.geom(i).name for i in range(model.ngeom)}
    found = [data.geom(foot).xpos if foot in geoms else data.body(foot).xpos for foot in feet]
    places = (np.array(found) - data.xpos[base]) @ data.xmat[base].reshape(3, 3)
    index = [int(np.linalg.norm(places - p * VECTOR[1], axis=1).argmin()) for p in places]
    return index, [1.0] * len(feet)


def _map(image: Image, env: Any) -> Map:
    return image(env) if callable(image) else image


def _refuse(why: str) -> None:
    raise UserError(
        f"the robot has no mirror symmetry: {why}. Train with "
        "--agent.algorithm.symmetry-cfg.no-use-equivariant-networks."
    )


def _image(rows: torch.Tensor, *parts: Map) -> torch.Tensor:
    """Return the image of rows that consist of these parts, in this order."""
    images, first = [], 0
    for index, signs in parts:
        part = rows[:, first : first + len(index)]
        images.append(part[:, index] * torch.tensor(signs, device=rows.device))
        first += len(index)
    return torch.cat(images, dim=1)
