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
from mjfleet.tools.check_task.call_trace import CallTrace
from mjfleet.tools.check_task.finding import Finding, Place
from mjfleet.tools.check_task.line_watch import LineWatch, host_generators
from mjfleet.tools.check_task.snapshot import COUNTERS, Snapshot

PLAIN = (bool, int, float, str, type(None), np.ndarray, np.random.Generator, random.Random)
FROZEN = (
    "a rollout that is captured as a CUDA graph does not change it any more, so that rollouts are "
    "made by calls, which is slower"
)
AS_TENSOR = "make it a tensor in setup(), and change that in place"


class PythonState:
    """Watches an environment's attributes, the modules of its task, and the host's generators."""

    def __init__(self, env: Env[Any], trace: CallTrace) -> None:
        """Remember what is there now."""
        self._env, self._trace = env, trace
        self._pinned = PinnedState({"env": env}, COUNTERS)
        self._globals = _globals(trace.folder)
        self._before = {name: probe() for name, probe in self._globals.items()}
        self.watch = LineWatch(trace.folder, host_generators())

    def findings(self, step: Callable[[], object]) -> Iterator[Finding]:
        """Yield what has changed, with its line, which another `step` shows."""
        for name, probe in self._globals.items():
            if not equal(probe(), self._before[name]):
                place = self._line_of(name, probe, step)
                yield Finding(f"{name} changes in a step: {FROZEN}; {AS_TENSOR}", place)
        try:
            self._pinned.settle()
        except CaptureError as error:
            yield self._explain(str(error), step)
            return
        yield from self._swaps(step)

    def _explain(self, text: str, step: Callable[[], object]) -> Finding:
        path = text.split(" ", maxsplit=1)[0]
        name = path.replace("env.", "self.", 1)
        place = self._line_of(path, lambda: _plain(_resolve(self._env, path)), step)
        if "and is no tensor" not in text:
            if "added or removed" in text:  # What holds it grows or shrinks in each step.
                path = path.rpartition(".")[0]
                place = self._line_of(path, lambda: _size(_resolve(self._env, path)), step)
            text = f"{text.replace('env.', 'self.', 1)} in a step: {FROZEN}; make it in setup()"
            return Finding(text, place)
        value = _resolve(self._env, path)
        if isinstance(value, np.random.Generator | random.Random):
            text = f"{name} draws random numbers on the host: {FROZEN}; use self.uniform or "
            return Finding(f"{text}self.normal", place)
        what = "a number of Python's" if isinstance(value, int | float) else "no tensor"
        return Finding(f"{name} changes in a step and is {what}: {FROZEN}; {AS_TENSOR}", place)

    def _swaps(self, step: Callable[[], object]) -> Iterator[Finding]:
        """Find two attributes that hold each other's tensor after a step."""
        before = {k: v for k, v in vars(self._env).items() if isinstance(v, torch.Tensor)}
        owner = {id(tensor): name for name, tensor in before.items()}
        step()
        now = vars(self._env)
        swaps = {
            frozenset((name, other)) for name, tensor in before.items()
            if (other := owner.get(id(now.get(name)))) and other != name
            and now.get(other) is tensor
        }  # fmt: skip
        for one, other in map(sorted, swaps):
            place = self._line_of(one, lambda name=one: id(getattr(self._env, name)), step)
            yield Finding(
                f"self.{one} and self.{other} trade places: a rollout that is captured as a CUDA "
                "graph has to copy them back, and whatever else holds one of them, such as a "
                f"view, then sees the other's numbers; write self.{one}.copy_(self.{other}), or a "
                "new tensor",
                place,
            )

    def _line_of(self, name: str, probe: Callable[[], Any], step: Callable[[], object]) -> Any:
        """Return the line that changes what `probe` returns, from another step."""
        snapshot = Snapshot(self._env)
        with LineWatch(self._trace.folder, {name: probe}) as watch:
            step()
        snapshot.restore()
        return watch.changes.get(name)


def random_draws(
    env: Env[Any], trace: CallTrace, changes: Mapping[str, Place]
) -> Iterator[Finding]:
    """Find random numbers that are not the environment's own.

    Args:
        env: the environment.
        trace: has seen its calls of torch.
        changes: lines that changed the state of the host's generators, by whose they are.
    """
    use = "use self.uniform or self.normal, whose generator is the worker's own"
    for place, generator in trace.draws.items():
        if generator is None:
            yield Finding(
                "draws from torch's global generator, which also draws the policy's actions, so "
                f"that evaluations and other workers change what is drawn; {use}",
                place,
            )
        elif generator is not env.generator:
            yield Finding(
                "draws from a generator of the task's own: it has the same seed in every worker "
                f"unless the task sees to that, and a CUDA graph cannot use it; {use}",
                place,
            )
    for name, place in changes.items():
        if name != "torch's" and place.function in ("setup", "make_model"):
            yield Finding(
                f"uses {name} global generator, whose numbers depend on what else has drawn from "
                "it, and on the order of evaluations; use self.uniform or self.normal, or a "
                "generator whose seed is in cfg",
                place,
            )
        elif name != "torch's":
            yield Finding(
                f"draws from {name} global generator, on the host: {FROZEN}; {use}", place
            )
        elif place not in trace.draws:
            yield Finding(
                "changes the state of torch's global generator, which also draws the policy's "
                f"actions; {use}",
                place,
            )


def _globals(folder: str) -> dict[str, Callable[[], Any]]:
    """Return probes of the plain values in the task's modules and their classes, by name."""
    probes: dict[str, Callable[[], Any]] = {}
    for module in list(sys.modules.values()):
        if not (getattr(module, "__file__", None) or "").startswith(folder):
            continue
        owners: list[Any] = [module]
        owners += [v for v in vars(module).values() if inspect.isclass(v)
                   and v.__module__ == module.__name__]  # fmt: skip
        for owner in owners:
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
    if isinstance(value, list | dict | set | np.ndarray):
        return repr(value) if isinstance(value, set) else value.copy()
    return value


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
