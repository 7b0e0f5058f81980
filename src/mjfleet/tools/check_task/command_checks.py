"""Commands, and what is drawn: that a policy sees what it is told. That watching changes nothing.

A viewer overrides what `commands()` returns.
"""

from collections.abc import Iterator
from typing import Any

import torch

from mjfleet.env.environment import Env
from mjfleet.tools.check_task.finding import Finding
from mjfleet.tools.check_task.random_states import write_random_states
from mjfleet.tools.check_task.subject import (
    Outcome,
    Subject,
    differs,
    joined,
    own_tensors,
    roll,
    rows_of,
)

NEXT_STEPS = 3  # Within which a command is to be observed, by a late sensor too.
RESETS = 30  # From which to tell what is drawn, whether near 0, and what follows from the state.
NEAR_ZERO = 0.06  # Of the largest norm: a draw below that makes zero a possible one.


def declared_commands(subject: Subject) -> Iterator[Finding]:
    """Check what `commands()` returns, and do what a viewer does with it."""
    env, place = subject.env, subject.method_place("commands")
    found = dict[str, Any](env.commands())
    for name, command in found.items():
        if wrong := _malformed(env, command):
            yield Finding(f"commands()[{name!r}] {wrong}", place)
            return
    is_bad = False
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
            subject.restore()
            outcomes[value], wrong = _steer(subject, {name: value})
            if wrong:
                yield Finding(f"commands()[{name!r}] {wrong}", place)
                break
            if (bad := _first_bad(outcomes[value])) and not _first_bad(outcomes[low]):
                is_bad = True
                yield _not_finite(subject, bad, f"where commands()[{name!r}] is {value:g}")
                break
        else:
            if low < high and not _seen(subject, outcomes[low], outcomes[high]):
                yield Finding(
                    f"commands()[{name!r}] changes nothing that the actor observes, so that a "
                    "policy cannot follow it; return it in observe()['actor'] too",
                    place,
                )
    zeros = {name: 0.0 for name, (_, low, high) in found.items() if low <= 0.0 <= high}
    if len(zeros) > 1 and not is_bad:
        subject.restore()
        if bad := _first_bad(_steer(subject, zeros)[0]):
            yield _not_finite(subject, bad, "where all commands are 0")
    env.command_override = False


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


def _steer(subject: Subject, wanted: dict[str, float]) -> tuple[Outcome, str | None]:
    """Give all worlds commands as a viewer does; return what follows, and what was wrong."""
    env, outcomes = subject.env, []
    env.command_override = True

    def differ() -> bool:
        now = env.commands()
        return any(bool((now[name][0] != value).any()) for name, value in wanted.items())

    for step, action in enumerate(subject.actions(NEXT_STEPS, seed=6)):
        for name, value in wanted.items():
            env.commands()[name][0].fill_(value)
        if differ():
            return {}, (
                "is a copy: what a viewer writes into it is lost; return a view of the tensor "
                "that the task uses, such as self.command[:, 0]"
            )
        is_last = step == NEXT_STEPS - 1
        if is_last:
            env.reset()
        else:
            outcomes.append(roll(env, action.unsqueeze(0)))
        if differ():
            return {}, (
                "does not keep what a viewer has written beyond "
                f"{'a reset' if is_last else 'a step'}; draw or compute commands only if not "
                "self.command_override"
            )
    return joined(outcomes), None


def _seen(subject: Subject, one: Outcome, other: Outcome) -> bool:
    """Return whether the actor's observations differ."""
    names = [f"observe()[{group!r}]" for group in subject.agent.obs_groups.actor]
    return any(bool(differs(one[name], other[name]).any()) for name in names)


def _first_bad(outcome: Outcome) -> str | None:
    return next((k for k, v in outcome.items() if not bool(v.double().isfinite().all())), None)


def _not_finite(subject: Subject, name: str, when: str) -> Finding:
    return Finding(
        f"{name}: not finite {when}; add a small number to what you divide by, or choose with "
        "torch.where",
        subject.trace.birth_of(name) or subject.place_of(name),
    )


def drawn_tensors(subject: Subject) -> Iterator[Finding]:
    """Check tensors that resets draw: that the actor observes what is rewarded, and their zeros.

    What follows from the first state, such as a start position, is none of these.
    """
    env, actions = subject.env, subject.actions(NEXT_STEPS, seed=7)
    samples: list[dict[str, torch.Tensor]] = []
    states, writers = [], {}
    for _ in range(RESETS):
        env._reset(subject.everywhere)
        own = own_tensors(env)
        samples.append({name: tensor.clone() for name, tensor in own.items()})
        writers |= {name: subject.trace.writer_of(tensor) for name, tensor in own.items()}
        states.append(torch.cat((env.sim.qpos, env.sim.qvel), dim=1).double())
    state = torch.cat(states)
    subject.restore()
    plain = roll(env, actions)
    for name, first in samples[0].items():
        if not first.is_floating_point() or rows_of(env, first) != 0:
            continue
        each = [sample[name].reshape(env.num_envs, -1) for sample in samples]
        values = torch.cat(each).double()
        is_drawn = differs(each[0], each[1]).any(dim=1).float().mean() > 0.5
        if not is_drawn or _follows_from(values, state):
            continue
        sizes = values.norm(dim=1)
        if not _first_bad(plain) and sizes.min() < NEAR_ZERO * sizes.max():
            subject.restore()
            own_tensors(env)[name].zero_()
            if bad := _first_bad(roll(env, actions)):
                yield _not_finite(subject, bad, f"where {name} is 0, which may be drawn")
        subject.restore()
        tensor = own_tensors(env)[name]
        tensor.copy_(tensor.roll(1, dims=0))
        other = roll(env, actions)
        changed = [key for key in plain if differs(plain[key], other[key]).any()]
        rewarded = [key for key in changed if key.startswith("rewards")]
        moved = {"sim.qpos", "sim.qvel"} & set(changed)
        if rewarded and not moved and not _seen(subject, plain, other):
            yield Finding(
                f"{name} is drawn in reset_worlds(), and {rewarded[0]} depends on it, but nothing "
                "that the actor observes does, so that a policy cannot know what is rewarded; "
                "return it in observe()['actor'] too",
                writers[name],
            )


def _follows_from(values: torch.Tensor, state: torch.Tensor) -> bool:
    """Return whether values are, nearly, a linear function of the first states."""
    inputs = torch.cat((state, torch.ones_like(state[:, :1])), dim=1)
    fitted = inputs @ (torch.linalg.pinv(inputs) @ values)
    left = (values - fitted).square().sum(dim=0)
    return bool((left < 0.1 * values.var(dim=0) * len(values) + 1e-12).all())


def what_is_watched(subject: Subject) -> Iterator[Finding]:
    """Find that watching changes something: methods that only return must write nothing.

    They are called in random states, since a limit, say, changes a state only once.
    """
    env, generator = subject.env, torch.Generator().manual_seed(16)
    fields = {f"sim.{name}": getattr(env.sim, name) for name in ("qpos", "qvel", "act", "ctrl")}
    for method in ("observe", "rewards", "metrics", "terminated", "debug_vis", "commands"):
        subject.restore()
        write_random_states(env, generator)
        env.sim.forward()
        only_state = method in ("observe", "rewards", "metrics")  # These keep what is theirs.
        kept = fields if only_state else fields | own_tensors(env)
        before = {name: tensor.clone() for name, tensor in kept.items()}
        drawn = env.generator.get_state()
        getattr(env, method)()
        after = fields | own_tensors(env)
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
            yield Finding(
                f"{method}() changes {changed[0]}: {why}; write it in {where} or reset_worlds()",
                subject.writer_of(after.get(changed[0]), method),
            )
