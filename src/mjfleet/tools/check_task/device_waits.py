"""Functions of torch that wait for the device, and what to write instead."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

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


def what_to_do(name: str, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> str | None:
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
