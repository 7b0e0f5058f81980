"""What a task keeps outside of tensors, and which random numbers it draws."""

import inspect
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from mjfleet.env.env_state import equal, generator_state
from mjfleet.tools.check_task.finding import Finding, Place
from mjfleet.tools.check_task.line_watch import LineWatch, host_generators
from mjfleet.tools.check_task.subject import Subject

PLAIN = (bool, int, float, str, type(None), np.ndarray, np.random.Generator, random.Random)


class PythonState:
    """Watches the modules of a task, their classes, and the host's generators."""

    def __init__(self, subject: Subject) -> None:
        """Remember what is there now."""
        self._globals = _globals(subject.trace.folder)
        self._before = {name: probe() for name, probe in self._globals.items()}
        self.watch = LineWatch(subject.trace.folder, host_generators())

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield what has changed."""
        for name, probe in self._globals.items():
            if not equal(probe(), self._before[name]):
                place = _line_of(subject, probe)
                yield Finding(
                    f"{name} changes in a step: no checkpoint holds it, so that a resumed run "
                    "begins with another value; make it an attribute of the environment, in "
                    "setup()",
                    place,
                )


def _line_of(subject: Subject, probe: Callable[[], Any]) -> Place | None:
    """Return the line that changes what `probe` returns, from another step."""
    with LineWatch(subject.trace.folder, {"": probe}) as watch:
        subject.env.step(subject.actions(1, seed=12)[0])
    subject.restore()
    return watch.changes.get("")


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
                f"unless the task sees to that; {use}",
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
            yield Finding(
                f"draws from {name} global generator, on the host, from which each number has to "
                f"be copied to a GPU; {use}",
                place,
            )


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
