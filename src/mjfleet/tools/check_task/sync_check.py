"""Finds code of a task that waits for the GPU, and methods that change what they return."""

import inspect
import linecache
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from mjfleet.env.environment import Env
from mjfleet.errors import UserError

METHODS = ("reset_worlds", "apply", "observe", "rewards", "terminated", "metrics", "debug_vis")
MJFLEET = os.path.join(Path(__file__).parents[2], "")

TENSOR = "keep it a tensor"
WHERE = "compute it for all worlds and choose with torch.where"
SETUP = "make the tensor once, in setup()"
WAITS = {
    **dict.fromkeys(("item", "tolist", "cpu", "numpy", "__array__", "__float__", "__int__",
                     "__index__", "__complex__", "__repr__", "__format__"), TENSOR),
    **dict.fromkeys(("__bool__", "__contains__", "is_nonzero", "equal", "allclose", "nonzero",
                     "argwhere", "masked_select", "unique", "unique_consecutive", "bincount"),
                    WHERE),
    "from_numpy": SETUP,
}  # fmt: skip
"""Functions of torch that wait for the device, each with what to do instead."""


class SyncCheck(TorchFunctionMode):
    """Records what a task's methods return and which functions of torch they call."""

    def __init__(self, env: Env[Any]) -> None:
        super().__init__()
        self.waits: dict[str, str] = {}  # Messages about code that waits, by file and line.
        self._folder = os.path.join(Path(inspect.getfile(type(env))).parent, "")
        # Shape and dtype of each returned tensor, by method and name.
        self._returned: dict[str, dict[str, tuple[Any, Any]]] = {}
        for name in METHODS:
            if method := getattr(env, name, None):
                setattr(env, name, partial(self._call, name, method))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, keywords = getattr(func, "__name__", ""), kwargs or {}
        todo = _what_to_do(name, args, keywords)
        if todo and (place := self._place()):
            waits = f"waits for the device ({name.strip('_')})"
            self.waits.setdefault(place, f"{place} {waits}; {todo}")
        return func(*args, **keywords)

    def other_dtypes(self) -> Iterator[str]:
        """Yield a message for each observation and reward that is not floating-point."""
        for method in ("observe", "rewards"):
            for name, (_, dtype) in self._returned[method].items():
                if not dtype.is_floating_point:
                    yield f"{method}()[{name!r}] is {dtype}; return .float() of it"

    def _call(self, name: str, method: Any, *arguments: Any) -> Any:
        with self:
            result = method(*arguments)
        named = result if isinstance(result, Mapping) else {"": result}
        now = {
            key: (tuple(getattr(value, "shape", ())), getattr(value, "dtype", type(value)))
            for key, value in named.items()
        }
        before = self._returned.setdefault(name, now)
        if list(now.items()) != list(before.items()):
            raise UserError(
                f"{name}() returned {before}, and later {now}; return the same names, shapes and "
                "dtypes in each call"
            )
        return result

    def _place(self) -> str | None:
        """Return file and line, function and code of the task that call torch; None for others."""
        for frame, line in traceback.walk_stack(sys._getframe(2)):
            file = frame.f_code.co_filename
            if file.startswith(self._folder):
                code = linecache.getline(file, line).strip()
                return f"{os.path.relpath(file)}:{line}, in {frame.f_code.co_name}(): `{code}`"
            if file.startswith(MJFLEET):
                return None
        return None


def _what_to_do(name: str, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> str | None:
    """Return what to write instead of a call; None if it does not wait for the device."""
    todo = WAITS.get(name)
    if name in ("__getitem__", "__setitem__"):
        indices = args[1] if isinstance(args[1], tuple) else (args[1],)
        if any(isinstance(i, list | np.ndarray) for i in indices):
            todo = SETUP
        tensors = [i for i in indices if isinstance(i, torch.Tensor)]
        if any(i.dtype in (torch.bool, torch.uint8) or i.ndim == 0 for i in tensors):
            todo = WHERE
    elif name in ("tensor", "as_tensor", "new_tensor"):
        data = keywords.get("data", args[name == "new_tensor"] if args else None)
        todo = None if isinstance(data, torch.Tensor) else SETUP
    elif name == "where" and len(args) + len(keywords) == 1:
        todo = WHERE
    elif name == "repeat_interleave" and "output_size" not in keywords:
        todo = WHERE if any(isinstance(v, torch.Tensor) for v in args[1:]) else None
    elif name == "to" and "cpu" in [v for v in (*args, *keywords.values()) if isinstance(v, str)]:
        todo = TENSOR
    return todo
