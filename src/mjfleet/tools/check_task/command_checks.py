"""Commands: that a viewer can set them, and that a policy observes them."""

from collections.abc import Iterator
from typing import Any

import torch

from mjfleet.env.environment import Env
from mjfleet.tools.check_task.finding import Finding, differs
from mjfleet.tools.check_task.subject import Outcome, Subject, roll

NEXT_STEPS = 3  # Within which a command is to be observed, by a late sensor too.


def declared_commands(subject: Subject) -> Iterator[Finding]:
    """Check what `commands()` returns, and do what a viewer does with it."""
    env = subject.env
    found = dict[str, Any](env.commands())
    for name, command in found.items():
        if wrong := _malformed(env, command):
            yield Finding(f"commands()[{name!r}] {wrong}")
            return
    is_bad = False
    for name, (values, low, high) in found.items():
        if bool(((values < low - 1e-5) | (values > high + 1e-5)).any()):
            yield Finding(
                f"commands()[{name!r}] says {low:g} to {high:g}, but its values are "
                f"{float(values.min()):g} to {float(values.max()):g}; return the range from which "
                "they are drawn"
            )
        outcomes = {}
        ends = {low, high, 0.0} if low <= 0.0 <= high else {low, high}
        for value in sorted(ends):
            subject.restore()
            outcomes[value], wrong = _steer(subject, {name: value})
            if wrong:
                yield Finding(f"commands()[{name!r}] {wrong}")
                break
            if (bad := _first_bad(outcomes[value])) and not _first_bad(outcomes[low]):
                is_bad = True
                yield _not_finite(bad, f"where commands()[{name!r}] is {value:g}")
                break
        else:
            if low < high and not _seen(subject, outcomes[low], outcomes[high]):
                yield Finding(
                    f"commands()[{name!r}] changes nothing that the actor observes, so that a "
                    "policy cannot follow it; return it in observe()['actor'] too"
                )
    zeros = {name: 0.0 for name, (_, low, high) in found.items() if low <= 0.0 <= high}
    if len(zeros) > 1 and not is_bad:
        subject.restore()
        if bad := _first_bad(_steer(subject, zeros)[0]):
            yield _not_finite(bad, "where all commands are 0")
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
    return {k: torch.cat([each[k][1:] for each in outcomes]) for k in outcomes[0]}, None


def _seen(subject: Subject, one: Outcome, other: Outcome) -> bool:
    """Return whether the actor's observations differ."""
    names = [f"observe()[{group!r}]" for group in subject.agent.obs_groups.actor]
    return any(bool(differs(one[name], other[name]).any()) for name in names)


def _first_bad(outcome: Outcome) -> str | None:
    return next((k for k, v in outcome.items() if not bool(v.double().isfinite().all())), None)


def _not_finite(name: str, when: str) -> Finding:
    return Finding(
        f"{name}: not finite {when}; add a small number to what you divide by, or choose with "
        "torch.where"
    )
