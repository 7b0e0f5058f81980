"""What a task keeps outside of tensors, and which random numbers it draws."""

import inspect
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from mjfleet.env.env_state import equal, generator_state
from mjfleet.env.environment import Env
from mjfleet.rl.pinned_state import CaptureError, PinnedState
from mjfleet.tools.check_task.finding import Finding, Place
from mjfleet.tools.check_task.line_watch import LineWatch, host_generators
from mjfleet.tools.check_task.subject import COUNTERS, Subject

PLAIN = (bool, int, float, str, type(None), np.ndarray, np.random.Generator, random.Random)
FROZEN = (
    "a rollout that is captured as a CUDA graph does not change it any more, so that rollouts are "
    "made by calls, which is slower"
)
AS_TENSOR = "make it a tensor in setup(), and change that in place"


class PythonState:
    """Watches an environment's attributes, the modules of its task, and the host's generators."""

    def __init__(self, subject: Subject) -> None:
        """Remember what is there now."""
        self._pinned = PinnedState({"env": subject.env}, COUNTERS)
        self._globals = _globals(subject.trace.folder)
        self._before = {name: probe() for name, probe in self._globals.items()}
        self.watch = LineWatch(subject.trace.folder, host_generators())

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield what has changed."""
        for name, probe in self._globals.items():
            if not equal(probe(), self._before[name]):
                place = _line_of(subject, probe)
                yield Finding(f"{name} changes in a step: {FROZEN}; {AS_TENSOR}", place)
        try:
            self._pinned.settle()
        except CaptureError as error:
            yield _explain(subject, str(error))
        else:
            yield from _swaps(subject)


def _explain(subject: Subject, text: str) -> Finding:
    """Return what PinnedState says about an attribute, with the line and what to do."""
    env, path = subject.env, text.split(" ", maxsplit=1)[0]
    if "and is no tensor" not in text:
        owner = path.rpartition(".")[0]
        of, probe = (owner, _size) if "added or removed" in text else (path, _plain)
        place = _line_of(subject, lambda: probe(_resolve(env, of)))
        text = f"{text.replace('env.', 'self.', 1)} in a step: {FROZEN}; make it in setup()"
        return Finding(text, place)
    name, value = path.replace("env.", "self.", 1), _resolve(env, path)
    place = _line_of(subject, lambda: _plain(_resolve(env, path)))
    if isinstance(value, np.random.Generator | random.Random):
        text = f"{name} draws random numbers on the host: {FROZEN}; use self.uniform or self.normal"
        return Finding(text, place)
    what = "a number of Python's" if isinstance(value, int | float) else "no tensor"
    return Finding(f"{name} changes in a step and is {what}: {FROZEN}; {AS_TENSOR}", place)


def _swaps(subject: Subject) -> Iterator[Finding]:
    """Find two attributes that hold each other's tensor after a step."""
    env = subject.env
    before = {k: v for k, v in vars(env).items() if isinstance(v, torch.Tensor)}
    owner = {id(tensor): name for name, tensor in before.items()}
    _step(subject)
    now = vars(env)
    swaps = {
        frozenset((name, other)) for name, tensor in before.items()
        if (other := owner.get(id(now.get(name)))) and other != name
        and now.get(other) is tensor
    }  # fmt: skip
    for one, other in map(sorted, swaps):
        yield Finding(
            f"self.{one} and self.{other} trade places: a rollout that is captured as a CUDA "
            "graph has to copy them back, and whatever else holds one of them, such as a "
            f"view, then sees the other's numbers; write self.{one}.copy_(self.{other}), or a "
            "new tensor",
            _line_of(subject, lambda name=one: id(getattr(env, name))),
        )


def _line_of(subject: Subject, probe: Callable[[], Any]) -> Place | None:
    """Return the line that changes what `probe` returns, from another step."""
    with LineWatch(subject.trace.folder, {"": probe}) as watch:
        _step(subject)
    subject.restore()
    return watch.changes.get("")


def _step(subject: Subject) -> None:
    subject.env.step(subject.actions(1, seed=12)[0])


def random_draws(subject: Subject, changes: Mapping[str, Place]) -> Iterator[Finding]:
    """Find random numbers that are not the environment's own.

    `changes` are lines that changed the state of the host's generators, by whose they are.
    """
    trace = subject.trace
    use = "use self.uniform or self.normal, whose generator is the worker's own"
    for place, generator in trace.draws.items():
        if generator is None:
            yield Finding(
                "draws from torch's global generator, which also draws the policy's actions, so "
                f"that evaluations and other workers change what is drawn; {use}",
                place,
            )
        elif generator is not subject.env.generator:
            yield Finding(
                "draws from a generator of the task's own: it has the same seed in every worker "
                f"unless the task sees to that, and a CUDA graph cannot use it; {use}",
                place,
            )
    for name, place in changes.items():
        if name == "torch's":
            if place not in trace.draws:
                yield Finding(
                    "changes the state of torch's global generator, which also draws the policy's "
                    f"actions; {use}",
                    place,
                )
        elif place.function in ("setup", "make_model"):
            yield Finding(
                f"uses {name} global generator, whose numbers depend on what else has drawn from "
                "it, and on the order of evaluations; use self.uniform or self.normal, or a "
                "generator whose seed is in cfg",
                place,
            )
        else:
            text = f"draws from {name} global generator, on the host: {FROZEN}; {use}"
            yield Finding(text, place)


def _globals(folder: str) -> dict[str, Callable[[], Any]]:
    """Return probes of the plain values in the task's modules and their classes, by name."""
    probes: dict[str, Callable[[], Any]] = {}
    for module in list(sys.modules.values()):
        if not (getattr(module, "__file__", None) or "").startswith(folder):
            continue
        classes = [value for value in vars(module).values() if inspect.isclass(value)]
        for owner in (module, *(each for each in classes if each.__module__ == module.__name__)):
            for name, value in vars(owner).items():
                if name[:2] != "__" and isinstance(value, (*PLAIN, list, dict, set)):
                    probes[f"{owner.__name__.split('.')[-1]}.{name}"] = (
                        lambda owner=owner, name=name: _plain(getattr(owner, name))
                    )
    return probes


def _plain(value: Any) -> Any:
    """Return a copy that does not change with the value."""
    if isinstance(value, np.random.Generator | random.Random):
        return generator_state(value)
    if isinstance(value, set):
        return repr(value)
    return value.copy() if isinstance(value, list | dict | np.ndarray) else value


def _size(value: Any) -> int:
    return len(value) if hasattr(value, "__len__") else len(vars(value))


def _resolve(env: Env[Any], path: str) -> Any:
    """Return what is at a path of PinnedState's, or None."""
    value: Any = env
    for key in path.split(".")[1:]:
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list | tuple) and key.isdigit():
            value = value[int(key)] if int(key) < len(value) else None
        elif not key.startswith("_buffers"):
            value = getattr(value, key, None)
    return value
