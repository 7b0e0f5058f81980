"""What a check of `mjfleet check-task` finds, and how values are compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Finding:
    """A mistake, or what may be one: where, what is wrong, why, and what to write instead."""

    text: str
    is_sure: bool = True

    def __str__(self) -> str:
        return self.text


def columns(chosen: torch.Tensor) -> str:
    """Return the chosen columns as text; nothing if there is only one column."""
    numbers = map(str, chosen.nonzero().flatten().tolist())
    return f" columns {', '.join(numbers)}" if len(chosen) > 1 else ""


def differs(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return where two values differ by more than rounding, as a mask of their shape."""
    close = one.double().isclose(other.double(), rtol=1e-5, atol=1e-7, equal_nan=True)
    return ~close


def changed(before: Mapping[str, torch.Tensor], now: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the names of values that differ."""
    return [name for name, value in before.items() if bool(differs(value, now[name]).any())]


def spread(values: torch.Tensor) -> str:
    """Return the least and the greatest of some values as text."""
    low, high = f"{values.min():.2g}", f"{values.max():.2g}"
    return low if low == high else f"{low} to {high}"


def joined(names: Sequence[str]) -> str:
    """Return names as text."""
    return ", ".join(names)
