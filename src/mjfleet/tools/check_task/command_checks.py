"""Commands: what `commands()` promises to viewers, and that a policy can see what it is told."""

from collections.abc import Iterator
from typing import Any

import torch

from mjfleet.config import AgentConfig
from mjfleet.env.environment import Env
from mjfleet.tools.check_task.call_trace import CallTrace, method_place
from mjfleet.tools.check_task.finding import Finding
from mjfleet.tools.check_task.random_states import write_random_states
from mjfleet.tools.check_task.random_steps import random_actions
from mjfleet.tools.check_task.snapshot import (
    Outcome,
    Snapshot,
    differs,
    own_copies,
    own_tensors,
    roll,
    rows_of,
)

NEXT_STEPS = 3  # Within which a command is to be observed, by a late sensor too.
RESETS = 30  # From which to tell what is drawn, whether near 0, and what follows from the state.
NEAR_ZERO = 0.06  # Of the largest norm: a draw below that makes zero a possible one.


def declared_commands(env: Env[Any], agent: AgentConfig, trace: CallTrace) -> Iterator[Finding]:
    """Check what `commands()` returns, and do what a viewer does with it."""
    place, found = method_place(env, "commands"), dict[str, Any](env.commands())
    for name, command in found.items():
        if wrong := _malformed(env, command):
            yield Finding(f"commands()[{name!r}] {wrong}", place)
            return
    snapshot, is_bad = Snapshot(env), False
    for name, (values, low, high) in found.items():
        if bool(((values < low - 1e-5) | (values > high + 1e-5)).any()):
            yield Finding(
                f"commands()[{name!r}] says {low:g} to {high:g}, but its values are "
                f"{float(values.min()):g} to {float(values.max()):g}; return the range from which "
                "they are drawn",
                place,
            )
        outcomes = {}
        ends = {low, high, 0.0} if low <= 0.0 <= high else {low, high}
        for value in sorted(ends):
            snapshot.restore()
            outcomes[value], kept = _steer(env, agent, {name: value})
            if kept:
                yield Finding(f"commands()[{name!r}] {kept}", place)
                break
            if (bad := _first_bad(outcomes[value])) and not _first_bad(outcomes[low]):
                is_bad = True
                yield _not_finite(env, trace, bad, f"where commands()[{name!r}] is {value:g}")
                break
        else:
            if low < high and not _seen(outcomes[low], outcomes[high], agent):
                yield Finding(
                    f"commands()[{name!r}] changes nothing that the actor observes, so that a "
                    "policy cannot follow it; return it in observe()['actor'] too",
                    place,
                )
    zeros = {name: 0.0 for name, (_, low, high) in found.items() if low <= 0.0 <= high}
    if len(zeros) > 1 and not is_bad:
        snapshot.restore()
        if bad := _first_bad(_steer(env, agent, zeros)[0]):
            yield _not_finite(env, trace, bad, "where all commands are 0")
    env.command_override = False
    snapshot.restore()


def _malformed(env: Env[Any], command: Any) -> str | None:
    """Return what is wrong with an entry of `commands()`."""
    if not (isinstance(command, tuple) and len(command) == 3):
        return "must be a tuple: a view of the values, the least and the greatest value"
    values, low, high = command
    if not isinstance(values, torch.Tensor) or values.shape != (env.num_envs,):
        shape = tuple(getattr(values, "shape", ())) or type(values).__name__
        return f"has values {shape}, not a tensor ({env.num_envs},)"
    if not values.is_floating_point():
        return f"is {values.dtype}; a viewer writes numbers into it, so make it floating-point"
    if isinstance(low, torch.Tensor) or isinstance(high, torch.Tensor) or not low <= high:
        return f"has the range {low} to {high}; write two numbers, the lower one first"
    return None


def _steer(
    env: Env[Any], agent: AgentConfig, wanted: dict[str, float]
) -> tuple[Outcome, str | None]:
    """Give all worlds commands as a viewer does; return what follows, and what was wrong."""
    env.command_override = True
    rows = []
    for step, action in enumerate(random_actions(env, agent, NEXT_STEPS, seed=6)):
        for name, value in wanted.items():
            env.commands()[name][0].fill_(value)
            if bool((env.commands()[name][0] != value).any()):
                return {}, (
                    "is a copy: what a viewer writes into it is lost; return a view of the tensor "
                    "that the task uses, such as self.command[:, 0]"
                )
        if step == NEXT_STEPS - 1:
            env.reset()
        else:
            rows.append(roll(env, action.unsqueeze(0)))
        for name, value in wanted.items():
            if bool((env.commands()[name][0] != value).any()):
                when = "a reset" if step == NEXT_STEPS - 1 else "a step"
                return {}, (
                    f"does not keep what a viewer has written beyond {when}; draw or compute "
                    "commands only if not self.command_override"
                )
    return {name: torch.stack([row[name][1] for row in rows]) for name in rows[0]}, None


def _seen(one: Outcome, other: Outcome, agent: AgentConfig) -> bool:
    """Return whether the actor's observations differ."""
    names = [f"observe()[{group!r}]" for group in agent.obs_groups.actor]
    return any(bool(differs(one[name], other[name]).any()) for name in names)


def _first_bad(outcome: Outcome) -> str | None:
    return next((k for k, v in outcome.items() if not bool(v.double().isfinite().all())), None)


def _not_finite(env: Env[Any], trace: CallTrace, name: str, when: str) -> Finding:
    method = name.split("()", maxsplit=1)[0]
    value = trace.returned.get(method, {}).get(name.split("'")[1]) if "'" in name else None
    return Finding(
        f"{name}: not finite {when}; add a small number to what you divide by, or choose with "
        "torch.where",
        trace.birth_of(value) or trace.place_of(method) or method_place(env, method),
    )


def drawn_tensors(env: Env[Any], agent: AgentConfig, trace: CallTrace) -> Iterator[Finding]:
    """Check tensors that resets draw: that the actor observes what is rewarded, and their zeros.

    What follows from the first state, such as a start position, is none of these.
    """
    snapshot, everywhere = Snapshot(env), torch.ones_like(env._whole)
    samples: list[dict[str, torch.Tensor]] = []
    states, writers = [], {}
    for _ in range(RESETS):
        env._reset(everywhere)
        own = own_tensors(env)
        samples.append({name: tensor.clone() for name, tensor in own.items()})
        writers |= {name: trace.writer_of(tensor) for name, tensor in own.items()}
        states.append(torch.cat((env.sim.qpos, env.sim.qvel), dim=1).double())
    state = torch.cat(states)
    actions = random_actions(env, agent, NEXT_STEPS, seed=7)
    snapshot.restore()
    plain = roll(env, actions)
    for name, first in samples[0].items():
        if not first.is_floating_point() or rows_of(env, first) != 0:
            continue
        values = torch.cat([_rows(sample[name]) for sample in samples]).double()
        drawn = differs(_rows(first), _rows(samples[1][name])).any(dim=1).float().mean() > 0.5
        if not drawn or _follows_from(values, state):
            continue
        if (
            not _first_bad(plain)
            and values.norm(dim=1).min() < NEAR_ZERO * values.norm(dim=1).max()
        ):
            snapshot.restore()
            own_tensors(env)[name].zero_()
            if bad := _first_bad(roll(env, actions)):
                yield _not_finite(env, trace, bad, f"where {name} is 0, which may be drawn")
        snapshot.restore()
        tensor = own_tensors(env)[name]
        tensor.copy_(tensor.roll(1, dims=0))
        other = roll(env, actions)
        rewarded = [
            k for k in plain if k.startswith("rewards") and differs(plain[k], other[k]).any()
        ]
        moved = any(differs(plain[k], other[k]).any() for k in ("sim.qpos", "sim.qvel"))
        if rewarded and not moved and not _seen(plain, other, agent):
            yield Finding(
                f"{name} is drawn in reset_worlds(), and {rewarded[0]} depends on it, but nothing "
                "that the actor observes does, so that a policy cannot know what is rewarded; "
                "return it in observe()['actor'] too",
                writers[name],
            )
    snapshot.restore()


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(len(tensor), -1)


def _follows_from(values: torch.Tensor, state: torch.Tensor) -> bool:
    """Return whether values are, nearly, a linear function of the first states."""
    inputs = torch.cat((state, torch.ones_like(state[:, :1])), dim=1)
    fitted = inputs @ (torch.linalg.pinv(inputs) @ values)
    left = (values - fitted).square().sum(dim=0)
    return bool((left < 0.1 * values.var(dim=0) * len(values) + 1e-12).all())


def what_is_watched(env: Env[Any], trace: CallTrace) -> Iterator[Finding]:
    """Find that watching changes something: methods that only return must write nothing.

    They are called in random states, since a limit, say, changes a state only once.
    """
    snapshot, generator = Snapshot(env), torch.Generator().manual_seed(16)
    for method in ("observe", "rewards", "metrics", "terminated", "debug_vis", "commands"):
        snapshot.restore()
        write_random_states(env, generator)
        env.sim.forward()
        only_state = method in ("observe", "rewards", "metrics")  # These keep what is theirs.
        before = _state(env) | ({} if only_state else own_copies(env))
        drawn = env.generator.get_state()
        getattr(env, method)()
        after = _state(env) | own_copies(env)
        changed = [k for k, v in before.items() if k in after and bool(differs(v, after[k]).any())]
        if not only_state and not torch.equal(drawn, env.generator.get_state()):
            changed.append("the random numbers that follow")
        if changed:
            why = "rewards() may call it too"
            if only_state:
                why = "what has been computed from it does not belong to it any more"
            elif method != "terminated":
                why = "a run that is watched would differ from one that is not"
            where = "apply()" if only_state else "rewards()"
            value = (own_tensors(env) | _fields(env)).get(changed[0])
            yield Finding(
                f"{method}() changes {changed[0]}: {why}; write it in {where} or reset_worlds()",
                (trace.writer_of(value) if value is not None else None)
                or method_place(env, method),
            )
    snapshot.restore()


def _fields(env: Env[Any]) -> dict[str, torch.Tensor]:
    return {f"sim.{name}": getattr(env.sim, name) for name in ("qpos", "qvel", "act", "ctrl")}


def _state(env: Env[Any]) -> dict[str, torch.Tensor]:
    return {name: field.clone() for name, field in _fields(env).items()}
