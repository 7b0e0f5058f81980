"""What single calls of torch show: waits for the device, lost writes, tensors on the CPU."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from mjfleet.tools.check_task.finding import Finding, Place

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
INDEXING = {"__getitem__", "index_select", "gather"}
COPYING = INDEXING | {"to", "float", "double", "reshape", "flatten"}
"""Functions of torch that return a view of a tensor in some cases, and a copy in others."""
UNSET = {"empty", "empty_like", "new_empty", "empty_strided"}
"""Functions of torch whose result holds whatever was in memory before."""
FACTORIES = UNSET | {
    "arange", "as_tensor", "eye", "from_numpy", "full", "linspace", "logspace", "ones", "rand",
    "randint", "randn", "tensor", "zeros",
}  # fmt: skip
"""Functions of torch that make a tensor on the CPU unless they are given a device."""


def instead_of_wait(name: str, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> str | None:
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


class LostWrites:
    """Follows tensors that a task copies from others and writes to, until they are used.

    A write such as `self.sim.qpos[:, indices][:] = pose` changes nothing.
    """

    def __init__(self) -> None:
        # By memory, which stays theirs while they are held; the place of the write, if any.
        self._copies: dict[int, tuple[torch.Tensor, str, Place | None]] = {}
        self._used: set[Place] = set()

    def note_read(self, name: str, source: torch.Tensor, result: torch.Tensor) -> None:
        """Remember a copy of a part of a tensor."""
        if name in COPYING and memory(result) != memory(source):
            self._copies[memory(result)] = result, name, None

    def note_write(self, target: torch.Tensor, place: Place) -> None:
        """Remember a write, if it is into such a copy."""
        if copy := self._copies.get(memory(target)):
            self._copies[memory(target)] = copy[0], copy[1], place

    def note_use(self, tensor: torch.Tensor) -> None:
        """Forget a copy that has been written to and is used afterwards."""
        copy = self._copies.get(memory(tensor))
        if copy and copy[2]:
            self._used.add(copy[2])
            del self._copies[memory(tensor)]

    def end_step(self) -> None:
        """Forget copies that nothing was written to."""
        self._copies = {key: copy for key, copy in self._copies.items() if copy[2]}

    def findings(self) -> Iterator[Finding]:
        """Yield a finding for each line whose writes were never read."""
        lost = {place: name for _, name, place in self._copies.values() if place}
        for place in lost.keys() - self._used:
            how = "indices" if lost[place] in INDEXING else f"{lost[place]}()"
            yield Finding(
                f"writes into a copy, since {how} returned one, so that nothing changes; write "
                "into the tensor itself, with one index, as in self.sim.qpos[:, ids] = pose",
                place,
            )


class HostTensors:
    """Follows tensors that would be on the CPU if the device were a GPU."""

    def __init__(self) -> None:
        self.findings: dict[Place | None, Finding] = {}  # By line.
        self._on_host: dict[int, tuple[torch.Tensor, Place]] = {}  # With the line of each.

    def note(self, name: str, place: Place, args: Any, keywords: Any, result: Any) -> None:
        """Follow tensors that a call makes without `device=self.device`."""
        if not self._on_host and name not in FACTORIES:
            return
        results = tensors_in((result,))
        inputs = tensors_in((*args, *keywords.values()))
        if name in UNSET and isinstance(result, torch.Tensor) and result.is_floating_point():
            result.fill_(torch.nan)  # So that its use is noticed.
        if name in FACTORIES and not inputs:
            if not isinstance(keywords.get("device"), torch.device):
                self._on_host |= {id(tensor): (tensor, place) for tensor in results}
            return
        moved = [v for v in (*args[1:], *keywords.values()) if not isinstance(v, torch.dtype)]
        if name in ("__getitem__", "__get__", "__setitem__", "copy_", "__len__") and (
            not args or id(args[0]) not in self._on_host
        ):
            return  # A value or an index from the CPU is copied.
        if name == "to" and moved:
            for tensor in results:  # On the CPU, it may be the same one.
                self._on_host.pop(id(tensor), None)
            return
        large = [tensor for tensor in inputs if tensor.ndim]
        made = [self._on_host[id(tensor)][1] for tensor in large if id(tensor) in self._on_host]
        if made and len(made) == len(large):
            self._on_host |= {id(tensor): (tensor, made[0]) for tensor in results}
        elif made:
            used = "" if made[0] == place else f", and meets others in line {place.line}"
            text = f"makes a tensor on the CPU{used}; write device=self.device"
            self.findings.setdefault(made[0], Finding(text, made[0]))


def tensors_in(values: Any) -> list[torch.Tensor]:
    """Return the tensors among values and in their lists and tuples, in order."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += tensors_in(value)
    return found


def memory(tensor: torch.Tensor) -> int:
    """Return the address of the memory that a tensor views."""
    return tensor.untyped_storage().data_ptr()
