"""When something that never changes is meant to: numbers that are switched off."""

import copy
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from mjfleet.env.environment import Env
from mjfleet.tools.check_task.call_trace import CallTrace
from mjfleet.tools.check_task.finding import Place
from mjfleet.tools.check_task.snapshot import Snapshot, differs, own_tensors


def excuses(env: Env[Any], trace: CallTrace, name: str) -> torch.Tensor:
    """Return which columns of a signal that does not change could change, `(size,)`.

    A reward term could if a number of the configuration were not 0. An observation could if it
    shows a tensor that the task writes while it runs, such as a command whose range has no width.
    """
    snapshot, (method, key) = Snapshot(env), (name.split("()", maxsplit=1)[0], name.split("'")[1])
    before = _value(env, method, key)
    changed = torch.zeros(before.shape[1], dtype=torch.bool, device=env.device)
    env.step(torch.zeros_like(env.action))
    writers = {own: trace.writer_of(tensor) for own, tensor in own_tensors(env).items()}
    snapshot.restore()
    for _ in _with_ones(env) if method == "rewards" else _with_others(env, writers):
        changed |= differs(before, _value(env, method, key)).any(dim=0)
        snapshot.restore()
    return changed.cpu()


def _value(env: Env[Any], method: str, key: str) -> torch.Tensor:
    return getattr(env, method)()[key].reshape(env.num_envs, -1).clone()


def _with_ones(env: Env[Any]) -> Iterator[None]:
    """Let each number of the configuration that is 0.0 be 1.0."""
    cfg = env.cfg
    env.cfg = _ones_for_zeros(cfg)
    yield
    env.cfg = cfg


def _ones_for_zeros(cfg: Any) -> Any:
    """Return a copy of a frozen dataclass, which is not checked again."""
    other = copy.copy(cfg)
    for field in fields(cfg):
        value = getattr(cfg, field.name)
        if is_dataclass(value):
            object.__setattr__(other, field.name, _ones_for_zeros(value))
        elif type(value) is float and value == 0:
            object.__setattr__(other, field.name, 1.0)
    return other


def _with_others(env: Env[Any], writers: dict[str, Place | None]) -> Iterator[None]:
    """Change each of the task's tensors that is written after setup(), one after the other."""
    for name, place in writers.items():
        tensor = own_tensors(env).get(name)
        is_setup = place is None or place.function == "setup"
        if tensor is not None and tensor.is_floating_point() and not is_setup:
            tensor.add_(1.0)
            yield
