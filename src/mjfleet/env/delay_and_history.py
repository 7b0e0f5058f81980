"""Delays and histories of values, which reset themselves. Tasks compose them in `setup`."""

from typing import Any

import torch

from mjfleet.env.argument_checks import check_shape, wrong_numbers
from mjfleet.env.environment import Env


class Delay:
    """Passes values on some steps late: the latency of a motor or a sensor.

    Each episode draws its own latency.
    """

    def __init__(
        self,
        env: Env[Any],
        size: int | tuple[int, ...],
        low: int,
        high: int,
        *,
        repeat_first: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Delay values `(num_envs, *size)` by `low` to `high` environment steps, both included.

        Args:
            size: of the values: a number, or that of images, (channels, height, width).
            low: least steps of delay.
            high: most steps of delay.
            repeat_first: whether an episode's first value is returned until the delay has passed,
                as a sensor would; otherwise zeros are, as before a motor's first action.
            dtype: of the values that are kept.

        Raises:
            UserError: they are not whole numbers from 0 up, the lower one first.
        """
        if not (isinstance(low, int) and isinstance(high, int) and 0 <= low <= high):
            raise wrong_numbers(env, f"Delay({low}, {high})", "whole, and 0 <= low <= high")

        def draw(mask: torch.Tensor) -> torch.Tensor:
            return env.integers(1, low, high + 1).squeeze(1)

        self.past = env.add_state("delay.past", high + 1, *_sizes(size), dtype=dtype)
        self.steps = env.add_state("delay.steps", dtype=torch.long, reset=draw)
        self.is_new = None
        if repeat_first:
            self.is_new = env.add_state("delay.is_new", dtype=torch.bool, reset=True)

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """Take the current values `(num_envs, *size)` and return the delayed ones.

        Raises:
            UserError: the values have another shape.
        """
        check_shape(self, values, self.past[:, 0])
        newest = values.to(self.past.dtype).unsqueeze(1)
        _push(self.past, torch.cat((newest, self.past[:, :-1]), dim=1), newest, self.is_new)
        index = self.steps.view(-1, *[1] * values.ndim).expand(-1, 1, *values.shape[1:])
        return self.past.gather(1, index).squeeze(1)


class History:
    """Keeps the newest observations, from which a policy can tell how values change.

    The first observation of an episode also fills the places before it.
    """

    def __init__(
        self,
        env: Env[Any],
        size: int | tuple[int, ...],
        length: int,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Keep `length` observations `(num_envs, *size)`, of a number or an image's (channels,
        height, width), as `dtype`."""
        sizes = length, *_sizes(size)
        self.past = env.add_state("history.past", *sizes, dtype=dtype, reset="keep")
        self.is_new = env.add_state("history.is_new", dtype=torch.bool, reset=True)

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """Take the newest observation `(num_envs, size)`; return `(num_envs, length * size)`, the
        oldest first; of images `(num_envs, length * channels, height, width)`.

        Raises:
            UserError: the observation has another shape.
        """
        check_shape(self, values, self.past[:, 0])
        newest = values.to(self.past.dtype).unsqueeze(1)
        _push(self.past, torch.cat((self.past[:, 1:], newest), dim=1), newest, self.is_new)
        return self.past.flatten(1, 2).clone()


def _sizes(size: int | tuple[int, ...]) -> tuple[int, ...]:
    return size if isinstance(size, tuple) else (size,)


def _push(
    past: torch.Tensor, shifted: torch.Tensor, newest: torch.Tensor, is_new: torch.Tensor | None
) -> None:
    """Write `shifted` into `past`, both `(num_envs, length, *size)`; where an episode `is_new`,
    `(num_envs,)`, write `newest`, `(num_envs, 1, *size)`, into all places."""
    if is_new is None:
        past.copy_(shifted)
    else:
        torch.where(is_new.view(-1, *[1] * (past.ndim - 1)), newest, shifted, out=past)
        is_new.fill_(False)
