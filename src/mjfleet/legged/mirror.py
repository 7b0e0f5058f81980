"""A robot's mirror image: left and right change places. Which joints do follows from the model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
import torch

from mjfleet.errors import UserError

if TYPE_CHECKING:
    from tensordict import TensorDict

Map = tuple[list[int], list[float]]
"""Which of a part's numbers the image takes, and their signs."""

Image = Map | Callable[[Any], Map]
"""A map, or what returns it for an environment whose model it depends on."""


@dataclass(frozen=True)
class Part:
    """Numbers of an observation, and what they are."""

    name: str
    read: Callable[[], torch.Tensor]
    """Returns their current values, `(num_envs, size)`."""
    image: Image
    """Their values in the robot's mirror image."""
    noise: float = 0.0
    """Largest noise on what the policy observes, of either sign."""
    unit: str = "1"
    meaning: str = ""


SAME: Map = [0], [1.0]
VECTOR: Map = [0, 1, 2], [1.0, -1.0, 1.0]
ROTATION: Map = [0, 1, 2], [-1.0, 1.0, -1.0]
COMMAND: Map = [0, 1, 2], [1.0, -1.0, -1.0]

NEAR = 0.02
"""How far a joint may be from the mirror image of another, m."""
SHARE = 0.01
"""How far a number may be from that of the image: a share of it, or of 1 rad or N·m if larger."""


def mirror(
    env: Any, obs: "TensorDict | None", actions: torch.Tensor | None
) -> tuple["TensorDict | None", torch.Tensor | None]:
    """Return observations and actions `(samples, size)`, followed by their mirror images.

    `env` is a VelocityEnv.

    Raises:
        UserError: the robot has no mirror symmetry.
    """
    from tensordict import TensorDict  # It takes a second, and `new-task --from` does without.

    for attribute, factors in env.factors.items():
        if factors != [factors[image] for image in joints(env)[0]]:
            _refuse(f"{type(env).__name__}.{attribute} differs between left and right: {factors}")
    if obs is not None:
        images = {
            name: _image(obs.get(name), env, [part.image for part in parts])
            for name, parts in env.parts().items()
        }
        obs = TensorDict.cat((obs, TensorDict(images, batch_size=obs.batch_size)))
    if actions is not None:
        actions = torch.cat((actions, _image(actions, env, [joints])))
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
        UserError: a joint has no image, or its numbers or those of its motor or body differ.
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
            off[i] = np.inf  # It is no image of its own; another joint shows what differs.
            other = int(off.argmin())
            image = _at(place * VECTOR[1], axis * ROTATION[1])
            _refuse(
                f"{model.joint(i + 1).name} has no image, a joint at {image}, in the frame of "
                f"{model.body(base).name}; {model.joint(other + 1).name} is at "
                f"{_at(places[other], axes[other])}"
            )
        index.append(nearest)
        signs.append(float(np.sign(turns[nearest])))
    _check_pairs(model, index, np.array(signs))
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


def _check_pairs(model: mujoco.MjModel, index: list[int], signs: np.ndarray) -> None:
    """Raise UserError if a joint, its motor or its body has other numbers than its image.

    Centres of mass are not compared: makers publish the same calf for both sides.
    """
    masses = np.bincount(model.body_weldid, model.body_mass, minlength=model.nbody)
    bodies, dofs = model.jnt_bodyid[1:], ("armature", "damping", "frictionloss")
    turned = {
        "angle in the pose `home` (rad)": model.key("home").qpos[7:],
        "range (rad)": model.jnt_range[1:] * model.jnt_limited[1:, None],
        "ctrlrange (rad)": model.actuator_ctrlrange * model.actuator_ctrllimited[:, None],
        "forcerange": model.actuator_forcerange,
    }
    equal = {
        "kp": model.actuator_gainprm[:, 0],
        "kv": -model.actuator_biasprm[:, 2],
        **{name: getattr(model, f"dof_{name}")[6:] for name in dofs},
        "stiffness": model.jnt_stiffness[1:],
        "mass of the body": masses[bodies],
        "inertia of the body": np.sort(model.body_inertia[bodies]),
    }
    for name, numbers in (turned | equal).items():
        values = numbers.reshape(len(index), -1)
        images, limit = values[index], SHARE * np.abs(values).max(axis=1)
        if name in turned:
            images, limit = np.sort(images * signs[:, None]), np.maximum(limit, SHARE)
        for i in np.flatnonzero(np.abs(images - values).max(axis=1) > limit):
            joint, image = model.joint(i + 1).name, model.joint(index[i] + 1).name
            has, must = (" ".join(f"{x:.4g}" for x in row[i]) for row in (values, images))
            _refuse(f"the {name} of {joint} is {has}; as the image of {image}, it must be {must}")


def _at(place: np.ndarray, axis: np.ndarray) -> str:
    numbers = (" ".join(f"{x:.3g}" for x in vector.round(6) + 0.0) for vector in (place, axis))
    return "{} m with the axis {}".format(*numbers)


def _refuse(why: str) -> None:
    raise UserError(
        f"the robot has no mirror symmetry: {why}. If this is intended, train with "
        "--agent.algorithm.symmetry-cfg.no-use-equivariant-networks."
    )


def _image(rows: torch.Tensor, env: Any, parts: Sequence[Image]) -> torch.Tensor:
    """Return the image of rows that consist of these parts, in this order."""
    images, first = [], 0
    for image in parts:
        index, signs = image(env) if callable(image) else image
        part = rows[:, first : first + len(index)]
        images.append(part[:, index] * torch.tensor(signs, device=rows.device))
        first += len(index)
    return torch.cat(images, dim=1)
