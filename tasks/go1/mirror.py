"""The Go1's mirror image: left and right change places."""

import torch
from tensordict import TensorDict

from .env import Go1Env

Map = tuple[list[int], list[float]]
"""Which of a part's numbers the image takes, and their signs."""

LEGS: Map = [1, 0, 3, 2], [1.0] * 4
JOINTS: Map = [3, 4, 5, 0, 1, 2, 9, 10, 11, 6, 7, 8], [-1.0, 1.0, 1.0] * 4
VECTOR: Map = [0, 1, 2], [1.0, -1.0, 1.0]
ROTATION: Map = [0, 1, 2], [-1.0, 1.0, -1.0]
COMMAND: Map = [0, 1, 2], [1.0, -1.0, -1.0]
HEIGHT: Map = [0], [1.0]
SCAN: Map = [7 * row + 6 - column for row in range(11) for column in range(7)], [1.0] * 77
FRAME = (ROTATION, VECTOR, JOINTS, JOINTS, JOINTS)


def mirror(
    env: Go1Env, obs: TensorDict | None, actions: torch.Tensor | None
) -> tuple[TensorDict | None, torch.Tensor | None]:
    """Return observations and actions `(samples, size)`, followed by their mirror images."""
    if obs is not None:
        parts = {
            "actor": (*FRAME * env.cfg.history, COMMAND),
            "critic": (*FRAME, COMMAND, VECTOR, HEIGHT, LEGS, LEGS),
        }
        if env.sim.model.nhfield:
            parts["critic"] += (SCAN,)
        images = {name: _image(obs.get(name), *parts[name]) for name in parts}
        obs = TensorDict.cat((obs, TensorDict(images, batch_size=obs.batch_size)))
    if actions is not None:
        actions = torch.cat((actions, _image(actions, JOINTS)))
    return obs, actions


def _image(rows: torch.Tensor, *parts: Map) -> torch.Tensor:
    """Return the image of rows that consist of these parts, in this order."""
    images, first = [], 0
    for index, signs in parts:
        part = rows[:, first : first + len(index)]
        images.append(part[:, index] * torch.tensor(signs, device=rows.device))
        first += len(index)
    return torch.cat(images, dim=1)
