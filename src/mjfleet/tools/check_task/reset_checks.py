"""What a task's `reset_worlds` must not do, or forgets."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from mjfleet.config import AgentConfig
from mjfleet.env import Delay, Env, History, Timer
from mjfleet.sim.simulation import DERIVED_FIELDS, STATE_FIELDS
from mjfleet.tools.check_task.call_trace import CallTrace, Poison, method_place
from mjfleet.tools.check_task.finding import Finding
from mjfleet.tools.check_task.random_steps import random_actions
from mjfleet.tools.check_task.snapshot import (
    Snapshot,
    differs,
    own_copies,
    own_tensors,
    roll,
    rows_of,
)

PARTS = (Delay, History, Timer)
MAY_CHANGE = 0.25  # Share of the other worlds that may change during a reset, as by a timer.


def reset_leaks(env: Env[Any], trace: CallTrace) -> Iterator[Finding]:
    """Reset every second world and find what changed in the others."""
    snapshot = Snapshot(env)
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
                    trace.writer_of(after[name]),
                )
    snapshot.restore()


def _worlds(env: Env[Any]) -> dict[str, torch.Tensor]:
    """Return all tensors with a row per world: the state and the task's own."""
    state = {f"sim.{name}": getattr(env.sim, name) for name in STATE_FIELDS}
    own = {f"self.{name}": value for name, value in vars(env).items()}
    expanded = {f"sim.expand({name!r})": field for name, field in env.sim._expanded.items()}
    return {
        name: value
        for name, value in (state | expanded | own).items()
        if isinstance(value, torch.Tensor) and value.shape[:1] == (env.num_envs,)
    }


def stale_reads(env: Env[Any], trace: CallTrace) -> Iterator[Finding]:
    """Find that a first state follows from positions or sensors of the episode before.

    `reset_worlds` runs again with other numbers where it reads these.
    """
    derived = [getattr(env.sim, name) for name in DERIVED_FIELDS if name in vars(env.sim)]
    memory = {field.untyped_storage().data_ptr() for field in derived if field.numel()}
    snapshot, readers, outcomes = Snapshot(env), [], []
    for by in (0.0, 0.25, -40.0):
        snapshot.restore()
        env.sim.reset(torch.ones_like(env._whole))
        trace.poison = Poison(memory, by)
        env.reset_worlds(torch.ones_like(env._whole))
        readers, trace.poison = trace.poison.readers, None
        state = {f"sim.{name}": getattr(env.sim, name) for name in STATE_FIELDS}
        outcomes.append({k: v.clone() for k, v in (state | own_tensors(env)).items()})
    snapshot.restore()
    for name, value in outcomes[0].items():
        if any(bool(differs(value, other[name]).any()) for other in outcomes[1:]):
            yield Finding(
                f"{name} follows from positions or sensors that reset_worlds() reads: these are "
                "still those of the episode that has ended, and are computed anew only after "
                "reset_worlds(); compute it from what you write to sim.qpos, or keep it in "
                "rewards() if it belongs to that episode, or write it at the start of observe()",
                readers[0] if readers else method_place(env, "reset_worlds"),
            )
            return


def forgotten_parts(env: Env[Any]) -> Iterator[Finding]:
    """Find a Delay, History or Timer of the task that `reset_worlds` does not reset."""
    snapshot, called = Snapshot(env), set[str]()
    parts = {name: part for name, part in vars(env).items() if isinstance(part, PARTS)}
    for name, part in parts.items():
        object.__setattr__(part, "reset", partial(_note_call, called, name, part.reset))
    env._reset(torch.ones_like(env._whole))
    for name, part in parts.items():
        object.__delattr__(part, "reset")
        if name not in called:
            yield Finding(
                f"self.{name} goes on into the next episode; call self.{name}.reset(mask) in "
                "reset_worlds(mask)",
                method_place(env, "reset_worlds"),
            )
    snapshot.restore()


def _note_call(called: set[str], name: str, reset: Callable[..., None], mask: Any) -> None:
    called.add(name)
    reset(mask)


def carried_over(env: Env[Any], agent: AgentConfig, trace: CallTrace) -> Iterator[Finding]:
    """Find what a task remembers of an episode beyond its end, and uses in the next one.

    That is a tensor which changes in ordinary steps, which a reset leaves as it is, and on whose
    values the next steps depend.
    """
    snapshot, everywhere = Snapshot(env), torch.ones_like(env._whole)
    actions = random_actions(env, agent, 3, seed=5)
    start = own_copies(env)
    _, _, dones, _ = env.step(actions[0])
    now, kept = own_copies(env), ~dones
    writers = {name: trace.writer_of(tensor) for name, tensor in own_tensors(env).items()}
    live = [name for name in start if name in now and _changed(env, start, now, name, kept)]
    env._reset(everywhere)
    after = own_copies(env)
    unchanged = [
        name for name in live
        if name in after and not _changed(env, now, after, name, everywhere)
    ]  # fmt: skip
    for name in unchanged:
        owner = getattr(env, name.split(".")[1], None)
        if isinstance(owner, PARTS):
            continue  # See `forgotten_parts`.
        futures = []
        for turned in (0, 1):
            snapshot.restore()
            env.step(actions[0])
            env._reset(everywhere)
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
                writers[name] or method_place(env, "reset_worlds"),
            )
    snapshot.restore()


def _changed(
    env: Env[Any],
    before: dict[str, torch.Tensor],
    after: dict[str, torch.Tensor],
    name: str,
    worlds: torch.Tensor,
) -> bool:
    """Return whether a tensor has changed in one of the chosen worlds."""
    if before[name].shape != after[name].shape:
        return False
    rows = rows_of(env, after[name])
    assert rows is not None
    moved = differs(before[name], after[name]).movedim(rows, 0)
    return bool((moved.reshape(env.num_envs, -1).any(dim=1) & worlds).any())
