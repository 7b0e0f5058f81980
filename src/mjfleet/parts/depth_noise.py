"""What makes images like those of a real depth camera: `observe` combines these. In a worker.

Depths are `(num_envs, channels, height, width)`, m; random numbers are the environment's.
"""

from typing import Any

import torch

from mjfleet.env import Env
from mjfleet.errors import UserError


def gaussian_depth(
    env: Env[Any], depth: torch.Tensor, *, constant: float = 0.0, quadratic: float = 0.0
) -> torch.Tensor:
    """Return depths with normal noise, whose deviation is `constant + quadratic * depth**2`, m.

    That of stereo cameras grows with the square of the distance.
    """
    noise = env.normal(depth[0].numel()).view_as(depth)
    return (depth + (constant + quadratic * depth.square()) * noise).clamp(min=0.0)


def blurred_edges(env: Env[Any], depth: torch.Tensor, *, share: float, step: float) -> torch.Tensor:
    """Return depths where, at edges, a random share of pixels has a neighbour's depth.

    A pixel is at an edge where the depth to its right or below differs by more than `step`, m.
    """
    right, below = depth.roll(-1, dims=3), depth.roll(-1, dims=2)
    right[..., -1], below[..., -1, :] = depth[..., -1], depth[..., -1, :]
    draw = env.uniform(depth[0].numel(), 0.0, 1.0).view_as(depth)
    found = torch.where(((right - depth).abs() > step) & (draw < share), right, depth)
    is_other = ((below - depth).abs() > step) & (draw > 1.0 - share)
    return torch.where(is_other, below, found)


def holes(
    env: Env[Any], image: torch.Tensor, *, share: float, value: float, size: int = 1
) -> torch.Tensor:
    """Return an image where a random share of squares, `size` pixels wide, has another value.

    Real cameras return 0, or their largest depth, where they see nothing. With `size` as wide as
    the image, whole images drop out. UserError if `size` is no whole number above 0.
    """
    if not isinstance(size, int) or size < 1:
        raise UserError(f"holes: size is {size!r}; it must be a whole number of pixels above 0.")
    count, _, height, width = image.shape
    rows, columns = -(-height // size), -(-width // size)
    is_hole = env.uniform(rows * columns, 0.0, 1.0).view(count, 1, rows, columns) < share
    is_hole = is_hole.repeat_interleave(size, dim=2).repeat_interleave(size, dim=3)
    return image.masked_fill(is_hole[..., :height, :width], value)
