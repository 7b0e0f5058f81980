"""What a task's `reset_worlds` must not do, or forgets."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from mjfleet.env import Delay, Env, History, Timer
from mjfleet.sim.simulation import DERIVED_FIELDS, STATE_FIELDS
from mjfleet.tools.check_task.call_trace import Poison
from mjfleet.tools.check_task.finding import Finding
from mjfleet.tools.check_task.subject import (
    Subject,
    differs,
    own_copies,
    own_tensors,
    roll,
    rows_of,
)
from mjfleet.tools.check_task.tensor_use import memory

PARTS = (Delay, History, Timer)
MAY_CHANGE = 0.25  # Share of the other worlds that may change during a reset, as by a timer.


def reset_leaks(subject: Subject) -> Iterator[Finding]:
    """Reset every second world and find what changed in the others."""
    env = subject.env
    kept = torch.arange(env.num_envs, device=env.device) % 2 == 0
    before = {name: value.clone() for name, value in _worlds(env).items()}
    env._reset(~kept)
    after = _worlds(env)
    for name, value in before.items():
        if name in after and after[name].shape == value.shape:
            now, then = after[name][kept].double(), value[kept].double()
            same = now.isclose(then, rtol=1e-4, atol=1e-6, equal_nan=True)
            if same.view(len(now), -1).all(dim=1).float().mean() < 1 - MAY_CHANGE:
                yield Finding(
                    f"reset_worlds(mask): changes {name} where mask is false; write "
                    "torch.where(mask, new, old), with mask.unsqueeze(1) for (num_envs, size)",
                    subject.trace.writer_of(after[name]),
                )


def _worlds(env: Env[Any]) -> dict[str, torch.Tensor]:
    """Return all tensors with a row per world: the state and the task's own."""
    own = {f"self.{name}": value for name, value in vars(env).items()}
    expanded = {f"sim.expand({name!r})": field for name, field in env.sim._expanded.items()}
    return {
        name: value
        for name, value in (_state(env) | expanded | own).items()
        if isinstance(value, torch.Tensor) and value.shape[:1] == (env.num_envs,)
    }


def _state(env: Env[Any]) -> dict[str, torch.Tensor]:
    return {f"sim.{name}": getattr(env.sim, name) for name in STATE_FIELDS}


def stale_reads(subject: Subject) -> Iterator[Finding]:
    """Find that a first state follows from positions or sensors of the episode before.

    `reset_worlds` runs again with other numbers where it reads these.
    """
    env, trace = subject.env, subject.trace
    derived = [getattr(env.sim, name) for name in DERIVED_FIELDS if name in vars(env.sim)]
    addresses = {memory(field) for field in derived if field.numel()}
    readers, outcomes = [], []
    for by in (0.0, 0.25, -40.0):
        subject.restore()
        env.sim.reset(subject.everywhere)
        trace.poison = Poison(addresses, by)
        env.reset_worlds(subject.everywhere)
        readers, trace.poison = trace.poison.readers, None
        outcomes.append({k: v.clone() for k, v in (_state(env) | own_tensors(env)).items()})
    for name, value in outcomes[0].items():
        if any(bool(differs(value, other[name]).any()) for other in outcomes[1:]):
            yield Finding(
                f"{name} follows from positions or sensors that reset_worlds() reads: these are "
                "still those of the episode that has ended, and are computed anew only after "
                "reset_worlds(); compute it from what you write to sim.qpos, or keep it in "
                "rewards() if it belongs to that episode, or write it at the start of observe()",
                readers[0] if readers else subject.method_place("reset_worlds"),
            )
            return


def forgotten_parts(subject: Subject) -> Iterator[Finding]:
    """Find a Delay, History or Timer of the task that `reset_worlds` does not reset."""
    env, called = subject.env, set[str]()
    parts = {name: part for name, part in vars(env).items() if isinstance(part, PARTS)}
    for name, part in parts.items():
        object.__setattr__(part, "reset", partial(_note_call, called, name, part.reset))
    env._reset(subject.everywhere)
    for name, part in parts.items():
        object.__delattr__(part, "reset")
        if name not in called:
            yield Finding(
                f"self.{name} goes on into the next episode; call self.{name}.reset(mask) in "
                "reset_worlds(mask)",
                subject.method_place("reset_worlds"),
            )


def _note_call(called: set[str], name: str, reset: Callable[..., None], mask: Any) -> None:
    called.add(name)
    reset(mask)


def carried_over(subject: Subject) -> Iterator[Finding]:
    """Find what a task remembers of an episode beyond its end, and uses in the next one.

    That is a tensor which changes in ordinary steps, which a reset leaves as it is, and on whose
    values the next steps depend.
    """
    env, actions = subject.env, subject.actions(3, seed=5)
    start = own_copies(env)
    _, _, dones, _ = env.step(actions[0])
    now = own_copies(env)
    writers = {
        name: subject.writer_of(tensor, "reset_worlds") for name, tensor in own_tensors(env).items()
    }
    env._reset(subject.everywhere)
    after = own_copies(env)
    for name in (name for name in start if name in now and name in after):
        changes = _changed(env, start[name], now[name], ~dones)
        if not changes or _changed(env, now[name], after[name], subject.everywhere):
            continue
        if isinstance(getattr(env, name.split(".")[1], None), PARTS):
            continue  # See `forgotten_parts`.
        futures = []
        for turned in (0, 1):
            subject.restore()
            env.step(actions[0])
            env._reset(subject.everywhere)
            tensor = own_tensors(env)[name]
            tensor.copy_(tensor.roll(turned, dims=rows_of(env, tensor) or 0))
            env._observations = env._observe()
            futures.append(roll(env, actions[1:]))
        one, other = futures
        followed = [key for key in one if differs(one[key], other[key]).any()]
        if followed:
            yield Finding(
                f"{name} goes on into the next episode, where {followed[0]} depends on it; renew "
                "it in reset_worlds(mask) where mask is true, as in self.x.masked_fill_(mask, 0)",
                writers[name],
            )


def _changed(
    env: Env[Any], before: torch.Tensor, after: torch.Tensor, worlds: torch.Tensor
) -> bool:
    """Return whether a tensor has changed in one of the chosen worlds."""
    if before.shape != after.shape:
        return False
    rows = rows_of(env, after)
    assert rows is not None
    moved = differs(before, after).movedim(rows, 0)
    return bool((moved.reshape(env.num_envs, -1).any(dim=1) & worlds).any())
