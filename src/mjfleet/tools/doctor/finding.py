"""What a check of `mjfleet doctor` has found: plain data that a child process hands over."""

from dataclasses import dataclass
from typing import Literal

MIB, GIB = 2**20, 2**30
LEAST_FREE = GIB
"""Bytes that a disk or a GPU must have free."""


@dataclass(frozen=True)
class Finding:
    """What a check has found, and what to do where that is not good."""

    status: Literal["ok", "warn", "FAIL"]
    found: str
    todo: str = ""


def size(number: float) -> str:
    """Bytes, as people read them."""
    return f"{number / GIB:.1f} GiB" if number >= GIB else f"{number / MIB:.0f} MiB"
