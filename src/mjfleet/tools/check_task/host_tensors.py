"""Finds tensors that a task makes on the CPU, whatever its device is."""

from collections.abc import Iterator
from typing import Any

import torch

from mjfleet.tools.check_task.finding import Finding, Place

UNSET = {"empty", "empty_like", "new_empty", "empty_strided"}
"""Functions of torch whose result holds whatever was in memory before."""
FACTORIES = UNSET | {
    "arange", "as_tensor", "eye", "from_numpy", "full", "linspace", "logspace", "ones", "rand",
    "randint", "randn", "tensor", "zeros",
}  # fmt: skip
"""Functions of torch that make a tensor on the CPU unless they are given a device."""


class HostTensors:
    """Follows tensors that would be on the CPU if the device were a GPU."""

    def __init__(self) -> None:
        self.findings: dict[Place | None, Finding] = {}  # By line.
        self._on_host: dict[int, tuple[torch.Tensor, Place]] = {}  # With the line of each.

    def note(
        self,
        name: str,
        place: Place,
        args: Any,
        keywords: Any,
        result: Any,
    ) -> None:
        """Follow tensors that a task makes without `device=self.device`."""
        results = list(tensors_in((result,)))
        inputs = list(tensors_in((args, tuple(keywords.values()))))
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


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)
