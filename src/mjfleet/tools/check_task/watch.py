"""Watches each torch operation of a task's code, for waits for the device and lost writes."""

import sys
from functools import cache
from traceback import FrameSummary
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from mjfleet.env.undeclared_changes import address
from mjfleet.sim.simulation import ACCELERATION_FIELDS, DERIVED_FIELDS
from mjfleet.tools.check_task.subject import Subject, place

aten = torch.ops.aten
INDEXING = {aten.index.Tensor, aten.index_put_.default}
READING = {
    aten.is_nonzero.default, aten.repeat_interleave.self_Tensor, aten.where.default,
    aten.resolve_conj.default,  # A part of tolist() and numpy().
}  # fmt: skip
"""Operations that need numbers of the device on the host, as those with one of TAGS do."""
TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}

WAITS = (
    "waits for the device: it reads a tensor's numbers, as .item(), .cpu() and `if` do, makes a "
    "tensor of numbers, or takes a mask as an index. Keep numbers in tensors, write torch.where("
    "mask, new, old) for `if` and masks, and make constant tensors in setup(), indices too"
)


class Watch(TorchDispatchMode):
    """Finds single operations that are mistakes, on any device, while it is entered."""

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self._sim, self._packages = subject.env.sim, subject.packages()
        self.texts: dict[str, None] = {}  # Each text is kept once.

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do an operation; note what is wrong with it if the task's code has started it."""
        if name := self._computed(func, args, kwargs or {}):
            self.note(f"has no effect: sim.{name} is computed from sim.qpos and qvel; write these")
        elif _waits(func, args):
            self.note(WAITS)
        return func(*args, **(kwargs or {}))

    def _computed(self, func: Any, args: Any, kwargs: dict[str, Any]) -> str | None:
        """Return the field that is written although the engine computes it; None: none is."""
        target: Any = args[0] if torch.Tag.inplace in _tags(func) else kwargs.get("out")
        if not isinstance(target, torch.Tensor):
            return None
        at, fields = address(target), vars(self._sim)
        names = (name for name in (*DERIVED_FIELDS, *ACCELERATION_FIELDS) if name in fields)
        return next((name for name in names if address(fields[name]) == at), None)

    def note(self, text: str) -> None:
        """Note what is wrong with an operation, if the task has started it, not the simulation."""
        frame = sys._getframe(2)
        while frame and not (module := frame.f_globals["__name__"]).startswith("mjfleet.sim."):
            if module.partition(".")[0] in self._packages:
                code = frame.f_code
                line = place(FrameSummary(code.co_filename, frame.f_lineno, code.co_name))
                self.texts[f"{line} {text}"] = None
                return
            frame = frame.f_back


class CopyWatch(TorchFunctionMode):
    """Finds `.cpu()`, which starts no operation where the tensor is on the CPU."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == torch.Tensor.cpu:
            self._watch.note(WAITS)
        return func(*args, **(kwargs or {}))


def _waits(func: Any, args: Any) -> bool:
    """Return whether an operation waits for the device, or would do so if that were a GPU."""
    if func in INDEXING:
        return any(at is not None and at.dtype in (torch.bool, torch.uint8) for at in args[1])
    if func is aten.lift_fresh.default:
        return args[0].ndim > 0  # torch.tensor of more than a number.
    if func is aten.one_hot.default:
        return max(args[1:], default=-1) < 0  # Without a number of classes.
    return func in READING or not TAGS.isdisjoint(_tags(func))


@cache
def _tags(func: Any) -> frozenset[torch.Tag]:
    """Return what torch says of an operation, which it looks up each time."""
    return frozenset(func.tags)
