"""Follows a task's calls of torch: what waits for the device, what draws, what comes from where."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from mjfleet.env.environment import Env
from mjfleet.errors import UserError
from mjfleet.tools.check_task.finding import Finding, Place, task_place
from mjfleet.tools.check_task.tensor_use import (
    HostTensors,
    LostWrites,
    instead_of_wait,
    memory,
    tensors_in,
)

METHODS = (
    "reset_worlds", "apply", "observe", "rewards", "terminated", "metrics", "debug_vis", "commands",
)  # fmt: skip

RANDOM = {
    "bernoulli", "bernoulli_", "binomial", "cauchy_", "dropout", "exponential_", "geometric_",
    "log_normal_", "multinomial", "normal", "normal_", "poisson", "rand", "rand_like", "randint",
    "randint_like", "randn", "randn_like", "random_", "randperm", "uniform_",
}  # fmt: skip
"""Functions of torch that draw random numbers."""
PASSED_ON = {"to", "float", "double", "clone", "contiguous", "detach", "type", "as_tensor"}
"""Functions of torch that return the values that they are given."""


@dataclass(frozen=True)
class Node:
    """A tensor, and the call that returned it."""

    name: str
    place: Place | None
    result: torch.Tensor  # Held, so that its identity is not given to another tensor.
    inputs: tuple[torch.Tensor, ...]


@dataclass
class Poison:
    """Memory whose readers are to see other numbers, to find out what depends on them."""

    memory: set[int]
    by: float
    readers: list[Place] = field(default_factory=list)


class CallTrace(TorchFunctionMode):
    """Records which functions of torch a task calls, on what, and where.

    Enter it while an environment is built, and hand that to `follow`. What methods return is known
    by names such as "terminated()" and "rewards()['upright']".
    """

    def __init__(self, folder: str) -> None:
        """Follow the code in `folder`."""
        super().__init__()
        self.folder = os.path.join(folder, "")
        self.method = "setup"  # The one that is being called; empty between calls.
        self.waits: dict[Place, Finding] = {}
        self.hidden: dict[Place, Finding] = {}  # Calls of nan_to_num on what is not finite.
        self.draws: dict[Place, torch.Generator | None] = {}  # By the task's own calls.
        self.draws_any = False
        self.nodes: dict[int, Node] = {}  # By tensor, of the newest step.
        # The newest write in place, by memory, which is held so that it is not used again.
        self.writes: dict[int, tuple[Place, torch.Tensor]] = {}
        self.lost_writes = LostWrites()
        self.names: dict[str, set[str]] = {}  # Functions called, by method.
        self.returned: dict[str, Any] = {}  # The newest values.
        self.host_tensors = HostTensors()
        self.elsewhere = self.host_tensors.findings  # And others of single lines.
        self.poison: Poison | None = None
        # Generators of a GPU, each with one on the CPU that draws in its place.
        self.twins: dict[int, tuple[torch.Generator, torch.Generator]] = {}
        self._first: dict[str, dict[str, tuple[Any, Any]]] = {}

    def follow(self, env: Env[Any]) -> None:
        """From now on, record each call of a method of `env`, and what it returns."""
        self.method = ""
        for name in METHODS:
            setattr(env, name, partial(self._call, name, getattr(env, name)))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, keywords = getattr(func, "__name__", ""), kwargs or {}
        place, is_within = task_place(self.folder, sys._getframe(1))
        own = None if is_within else place
        if own and self.method != "setup" and (todo := instead_of_wait(name, args, keywords)):
            text = f"waits for the device ({name.strip('_')}); {todo}"
            self.waits.setdefault(own, Finding(text, own))
        if name in RANDOM:
            self.draws_any = True
            generator = keywords.get("generator")
            if own:
                self.draws.setdefault(own, generator)
            if name in ("rand", "randn") and generator is not None:
                return self._draw(func, args, keywords, generator)
        if self.poison and name != "__get__":
            args = _poisoned(args, self.poison, place)
        result = func(*args, **keywords)
        if place:
            self._note(name, place, args, keywords, result)
        if own:
            self.host_tensors.note(name, own, args, keywords, result)
        return result

    def place_of(self, name: str, column: int = 0) -> Place | None:
        """Return the line that made a column of what a method has returned last."""
        value = self.returned.get(name)
        value = value[0] if isinstance(value, tuple) else value
        place, width = None, 0
        while isinstance(value, torch.Tensor) and (node := self.nodes.get(id(value))):
            if node.name == "__setitem__" and place:
                break  # A view of the state: the line that reads it is meant.
            place = node.place or place
            if node.name in ("cat", "concatenate", "concat") and value.ndim == 2:
                for value in node.inputs:
                    width = value.shape[1]
                    if column < width:
                        break
                    column -= width
            elif node.name in PASSED_ON and node.inputs:
                value = node.inputs[0]
            else:
                break
        return place

    def writer_of(self, tensor: torch.Tensor | None) -> Place | None:
        """Return the line that has written a tensor last."""
        if tensor is None:
            return None
        if written := self.writes.get(memory(tensor)):
            return written[0]
        node = self.nodes.get(id(tensor))
        return node and node.place

    def birth_of(self, name: str) -> Place | None:
        """Return the line where a value's numbers that are not finite came from ones that are."""
        place, value = None, self.returned.get(name)
        while isinstance(value, torch.Tensor) and (node := self.nodes.get(id(value))):
            place = node.place
            bad = [x for x in node.inputs if x is not value and not bool(x.isfinite().all())]
            if not bad:
                break
            value = bad[0]
        return place

    def births(self) -> dict[str, Place | None]:
        """Return these lines of the newest observations and rewards that are not finite."""
        return {
            name: self.birth_of(name)
            for name, value in self.returned.items()
            if name.startswith(("observe", "rewards")) and not bool(value.isfinite().all())
        }

    def findings(self) -> Iterator[Finding]:
        """Yield what single calls have shown."""
        for method in ("observe", "rewards"):
            for key, (_, dtype) in self._first[method].items():
                if dtype not in (torch.float32, torch.float64):
                    name = f"{method}()[{key!r}]"
                    todo = "compute it in float32"
                    if not dtype.is_floating_point:
                        todo = "return .float() of it"
                    yield Finding(f"{name} is {dtype}; {todo}", self.place_of(name))
        yield from self.waits.values()
        yield from self.elsewhere.values()
        yield from self.lost_writes.findings()

    def _call(self, name: str, method: Any, *arguments: Any) -> Any:
        if name == "apply":
            self.nodes.clear()
            self.lost_writes.end_step()
        given = [value.clone() for value in tensors_in(arguments)]
        outer, self.method = self.method, name
        with nullcontext() if outer else self:  # Methods call each other.
            result = method(*arguments)
        self.method = outer
        for value, before in zip(tensors_in(arguments), given, strict=True):
            if not torch.equal(value, before):
                place = self.writer_of(value)
                text = f"{name}() changes the tensor that it is given, which others use too; write "
                text += "action = action.clamp(-1, 1) instead of action.clamp_(-1, 1)"
                self.elsewhere.setdefault(place, Finding(text, place))
        if name == "commands":
            return result
        named = dict(result) if isinstance(result, Mapping) else {"": result}
        for value in tensors_in(named.values()):
            self.lost_writes.note_use(value)
        self.returned |= {f"{name}()[{k!r}]" if k else f"{name}()": v for k, v in named.items()}
        now = {
            key: (tuple(getattr(value, "shape", ())), getattr(value, "dtype", type(value)))
            for key, value in named.items()
        }
        before = self._first.setdefault(name, now)
        if list(now.items()) != list(before.items()):
            raise UserError(
                f"{name}() returned {before}, and later {now}; return the same names, shapes and "
                "dtypes in each call"
            )
        return result

    def _note(self, name: str, place: Place, args: Any, keywords: Any, result: Any) -> None:
        """Record a call by which the task's code made or changed tensors."""
        self.names.setdefault(self.method, set()).add(name)
        inputs = tuple(tensors_in((*args, *keywords.values())))
        if name == "nan_to_num" and inputs and not bool(inputs[0].isfinite().all()):
            text = "nan_to_num() hides numbers that are not finite; mend where they come from"
            self.hidden.setdefault(place, Finding(text, place))
        changed = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
        changed = bool(inputs) and (changed or (name[:3] == "__i" and name != "__invert__"))
        for tensor in inputs[changed:]:
            self.lost_writes.note_use(tensor)
        if changed:
            self.lost_writes.note_write(inputs[0], place)
            self.writes[memory(inputs[0])] = place, inputs[0]
            if name == "__setitem__":
                self.nodes[id(inputs[0])] = Node(name, place, inputs[0], inputs[1:])
        elif inputs and isinstance(result, torch.Tensor):
            self.lost_writes.note_read(name, inputs[0], result)
        if name in ("sub", "__sub__", "__rsub__") and len(inputs) == 2 and _are_same(*inputs):
            text = "subtracts a tensor from itself: what keeps an earlier value is no copy but the "
            text += "same tensor, which changes too; keep a copy, as in self.last = x.clone()"
            self.elsewhere.setdefault(place, Finding(text, place))
        for tensor in tensors_in((result,)):
            self.nodes[id(tensor)] = Node(name, place, tensor, inputs)

    def _draw(self, func: Any, args: Any, keywords: Any, generator: torch.Generator) -> Any:
        """Draw on the CPU what is drawn on a GPU, so that all devices have the same numbers."""
        if generator.device.type == "cpu":
            return func(*args, **keywords)
        pair = generator, torch.Generator().manual_seed(generator.initial_seed())
        _, twin = self.twins.setdefault(id(generator), pair)
        drawn = func(*args, **keywords | {"generator": twin, "device": "cpu"})
        return drawn.to(generator.device)


def _poisoned(value: Any, poison: Poison, place: Place | None) -> Any:
    """Return a call's arguments with other numbers where they are read from poisoned memory."""
    if type(value) in (list, tuple):
        return type(value)(_poisoned(item, poison, place) for item in value)
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    if memory(value) not in poison.memory:
        return value
    if place and place not in poison.readers:
        poison.readers.append(place)
    return value + poison.by


def _are_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors are the same numbers in memory."""
    place = one.data_ptr(), one.shape, one.stride()
    return place == (other.data_ptr(), other.shape, other.stride()) and one.numel() > 0
