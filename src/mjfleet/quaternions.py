"""Rotations as quaternions w, x, y, z: tensors `(..., 4)`, of any leading dimensions."""

import torch
from torch.linalg import cross


def conjugate(q: torch.Tensor) -> torch.Tensor:
    """Return the inverse rotations."""
    return torch.cat((q[..., :1], -q[..., 1:]), dim=-1)


def multiply(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Return the rotations q, followed by p."""
    (a, u), (b, v) = (p[..., :1], p[..., 1:]), (q[..., :1], q[..., 1:])
    real = a * b - (u * v).sum(dim=-1, keepdim=True)
    return torch.cat((real, a * v + b * u + cross(u, v)), dim=-1)


def rotate(q: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Return vectors `(..., 3)`, rotated."""
    axis = q[..., 1:]
    turned = 2 * cross(axis, vectors)
    return vectors + q[..., :1] * turned + cross(axis, turned)


def rotation_vector(q: torch.Tensor) -> torch.Tensor:
    """Return axis times angle, `(..., 3)`, rad, of at most pi."""
    q = torch.where(q[..., :1] < 0, -q, q)
    sine = q[..., 1:].norm(dim=-1, keepdim=True)
    angle = 2 * torch.atan2(sine, q[..., :1])
    return q[..., 1:] * torch.where(sine > 1e-9, angle / sine.clamp(min=1e-9), 2.0)


def from_rotation_vector(vector: torch.Tensor) -> torch.Tensor:
    """Return the rotations of axis times angle, `(..., 3)`, rad."""
    half = vector.norm(dim=-1, keepdim=True) / 2
    return torch.cat((half.cos(), vector * torch.sinc(half / torch.pi) / 2), dim=-1)


def heading(q: torch.Tensor) -> torch.Tensor:
    """Return the rotations about z alone by which the x axes are turned."""
    w, x, y, z = q.unbind(dim=-1)
    half = torch.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z)) / 2
    zero = torch.zeros_like(half)
    return torch.stack((half.cos(), zero, zero, half.sin()), dim=-1)


def two_columns(q: torch.Tensor) -> torch.Tensor:
    """Return the first two columns of the rotation matrices, row by row, `(..., 6)`."""
    w, x, y, z = q.unbind(dim=-1)
    rows = (
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z),
        2 * (x * z - w * y), 2 * (y * z + w * x),
    )  # fmt: skip
    return torch.stack(rows, dim=-1)
