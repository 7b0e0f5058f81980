"""Checks the arguments of delays, histories, timers and levels."""

from typing import Any

import torch

from mjfleet.env.environment import Env
from mjfleet.errors import UserError


def wrong_numbers(env: Env[Any], what: str, wanted: str) -> UserError:
    """Return the error for a part whose numbers are not as `wanted`."""
    return UserError(f"{type(env).__name__}: the numbers of {what} must be {wanted}.")


def check_shape(part: object, values: torch.Tensor, own: torch.Tensor) -> None:
    """Raise UserError unless values have the shape that a part keeps."""
    if values.shape != own.shape:
        name, wanted, given = type(part).__name__, tuple(own.shape), tuple(values.shape)
        raise UserError(f"{name} was made for values {wanted}, and is given {given}.")
