"""What never changes, although it is not meant to: observations, reward terms, terminated()."""

import copy
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from mjfleet.env.environment import Env
from mjfleet.tools.check_task.finding import Finding, columns
from mjfleet.tools.check_task.subject import Outcome, Subject, differs, own_tensors


def constant_columns(values: torch.Tensor) -> torch.Tensor:
    """Return which columns of `(steps, num_envs, size)` change by rounding only, `(size,)`."""
    low, high = values.amin(dim=(0, 1)), values.amax(dim=(0, 1))
    return high - low <= 1e-7 + 1e-6 * torch.maximum(high.abs(), low.abs())


def constant_signals(subject: Subject, run: Outcome, states: Outcome) -> Iterator[Finding]:
    """Find what never changes, neither with random actions nor in random `states`."""
    env = subject.env
    may_fail = type(env).terminated is not Env.terminated
    for name in (name for name in run if name.startswith(("observe()", "rewards()"))):
        values = run[name]
        constant = constant_columns(values[1:])
        first = values[1, 0][constant]
        numbers = ", ".join(f"{float(number) + 0:g}" for number in first[:4])
        numbers += ", ..." * (len(first) > 4)
        if not name.startswith("rewards()"):
            remedy = "compute it from the state in each call of observe()"
        elif may_fail and (first > 0).any():
            continue  # It pays for each step without a failure.
        else:
            remedy = "make it follow the state"
        text = (
            f"{numbers} in all environments and steps, so that nothing is learned from it; "
            f"{remedy}, or leave it out"
        )
        still = constant & constant_columns(torch.cat((values[1:], states[name][1:])))
        if still.any() and (still & ~_could_change(subject, name)).any():
            where = "" if constant.all() else columns(constant)
            place = subject.place_of(name, int(constant.nonzero()[0]))
            yield Finding(f"{name}{where}: {text}", place)
    if may_fail and not any(each["terminated()"].any() for each in (run, states)):
        yield Finding(
            "terminated() is never true, neither with random actions nor in random states; "
            "look at its condition, or leave it out",
            subject.place_of("terminated()"),
            is_sure=False,
        )


def _could_change(subject: Subject, name: str) -> torch.Tensor:
    """Return which columns of a signal that does not change could, `(size,)`.

    A reward term could if a number of the configuration were not 0. An observation could if it
    shows a tensor that the task writes while it runs, such as a command whose range has no width.
    """
    env, (method, key) = subject.env, (name.split("()", maxsplit=1)[0], name.split("'")[1])
    before = _value(env, method, key)
    changed = torch.zeros(before.shape[1], dtype=torch.bool, device=env.device)
    env.step(torch.zeros_like(env.action))
    writers = {own: subject.trace.writer_of(tensor) for own, tensor in own_tensors(env).items()}
    written = [own for own, place in writers.items() if place and place.function != "setup"]
    subject.restore()
    for _ in _variants(env, method, written):
        changed |= differs(before, _value(env, method, key)).any(dim=0)
        subject.restore()
    return changed.cpu()


def _value(env: Env[Any], method: str, key: str) -> torch.Tensor:
    return getattr(env, method)()[key].reshape(env.num_envs, -1).clone()


def _variants(env: Env[Any], method: str, names: list[str]) -> Iterator[None]:
    """Change the configuration for rewards, else each of some of the task's tensors."""
    if method == "rewards":
        env.cfg = _ones_for_zeros(env.cfg)
        yield
        return
    for name in names:
        tensor = own_tensors(env).get(name)
        if tensor is not None and tensor.is_floating_point():
            tensor.add_(1.0)
            yield


def _ones_for_zeros(cfg: Any) -> Any:
    """Return a copy of a configuration, which is not checked again, with 1.0 for each 0.0."""
    other = copy.copy(cfg)
    for field in fields(cfg):
        value = getattr(cfg, field.name)
        if is_dataclass(value):
            object.__setattr__(other, field.name, _ones_for_zeros(value))
        elif type(value) is float and value == 0:
            object.__setattr__(other, field.name, 1.0)
    return other
