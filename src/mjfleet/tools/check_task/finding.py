"""What a check of `mjfleet check-task` finds, and where in a task's code."""

import linecache
import os
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch

MJFLEET = os.path.join(Path(__file__).parents[2], "")


class Place(NamedTuple):
    """A line of a task's code."""

    file: str
    line: int
    function: str

    @classmethod
    def of(cls, frame: FrameType) -> "Place":
        return cls(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)

    def __str__(self) -> str:
        code = linecache.getline(self.file, self.line).strip()
        return f"{os.path.relpath(self.file)}:{self.line}, in {self.function}(): `{code}`"


@dataclass(frozen=True)
class Finding:
    """A mistake, or what may be one: what is wrong, why, and what to write instead."""

    text: str
    place: Place | None = None
    is_sure: bool = True

    def __str__(self) -> str:
        return f"{self.place}: {self.text}" if self.place else self.text


def task_place(folder: str, frame: FrameType) -> tuple[Place | None, bool]:
    """Return the innermost line of the task in `folder` that led to a frame.

    The second value is whether code of mjfleet's, which the task called, lies between them.
    """
    is_within = False
    each: FrameType | None = frame
    while each:
        file = each.f_code.co_filename
        if file.startswith(folder):
            return Place.of(each), is_within
        is_within = is_within or file.startswith(MJFLEET)
        each = each.f_back
    return None, is_within


def columns(chosen: torch.Tensor) -> str:
    """Return the chosen columns as text; nothing if there is only one column."""
    numbers = map(str, chosen.nonzero().flatten().tolist())
    return f" columns {', '.join(numbers)}" if len(chosen) > 1 else ""
