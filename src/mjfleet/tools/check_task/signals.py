"""Checks steps with random actions: observations, rewards, actions and ends of episodes."""

import copy
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from mjfleet.env.environment import Env
from mjfleet.tools.check_task.subject import (
    STATE,
    Finding,
    Outcome,
    Subject,
    columns,
    differs,
    roll,
)

STEPS = 99  # Odd, so that what trades places in each step has changed.
ROUNDS = 20  # Of random states in all environments.
EFFECT_STEPS = 20  # Within which an action must change the state, a late motor's too.
EARLY = 3  # Steps: episodes that end that soon teach nothing.


def engine_warnings(env: Env[Any]) -> Iterator[Finding]:
    """Find what the engine warns of."""
    for kind, worlds in env.sim.warnings().items():
        yield Finding(
            f"the engine reports {kind} in {worlds} of {env.num_envs} environments; look at the "
            "model, and at what apply() and reset_worlds() write"
        )


def not_finite(run: Outcome) -> list[Finding]:
    """Find numbers that are not finite; of a bad state, the state alone."""
    found: dict[str, Finding] = {}
    for name, values in run.items():
        bad = ~values.isfinite()
        if bad.any():
            some = int(bad.any(dim=2).any(dim=0).sum())
            first = int(bad.any(dim=2).any(dim=1).nonzero()[0])
            found[name] = Finding(
                f"{name}{columns(bad.any(dim=1).any(dim=0))}: not finite, first in step {first}, "
                f"in {some} of {bad.shape[1]} environments; look for divisions by zero, roots, "
                "logarithms and bodies that overlap"
            )
    states = [found[f"sim.{name}"] for name in STATE if f"sim.{name}" in found]
    return states or list(found.values())


def rare_numbers(states: Outcome) -> Iterator[Finding]:
    """Find observations and rewards that are not finite in states which are seldom reached."""
    for name, values in states.items():
        bad = ~values.isfinite()
        if name.startswith(("observe", "rewards")) and bad.any():
            yield Finding(
                f"{name}{columns(bad.any(dim=0).any(dim=0))}: not finite in "
                f"{float(bad.any(dim=2).double().mean()):.1%} of random states, which a policy may "
                "reach, and which would end its training; limit the argument of a root, logarithm, "
                "acos or division, as in x.clamp(min=1e-6)",
                is_sure=False,
            )


def constant_columns(values: torch.Tensor) -> torch.Tensor:
    """Return which columns of `(steps, num_envs, size)` change by rounding only, `(size,)`."""
    low, high = values.amin(dim=(0, 1)), values.amax(dim=(0, 1))
    return high - low <= 1e-7 + 1e-6 * torch.maximum(high.abs(), low.abs())


def constant_signals(subject: Subject, run: Outcome, states: Outcome) -> Iterator[Finding]:
    """Find what never changes, neither with random actions nor in random `states`."""
    may_fail = subject.overrides("terminated")
    for name in (name for name in run if name.startswith(("observe()", "rewards()"))):
        values = run[name][1:]
        constant = constant_columns(torch.cat((values, states[name])))
        first = values[0, 0][constant]
        if not constant.any() or (_could_change(subject, name) | ~constant).all():
            continue
        if name.startswith("rewards()") and may_fail and (first > 0).any():
            continue  # It pays for each step without a failure.
        numbers = ", ".join(f"{float(number) + 0:g}" for number in first[:4])
        where = "" if constant.all() else columns(constant)
        yield Finding(
            f"{name}{where}: {numbers}{', ...' * (len(first) > 4)} in all environments and steps, "
            "so that nothing is learned from it; compute it from the state, or leave it out"
        )
    if may_fail and not any(each["terminated()"].any() for each in (run, states)):
        yield Finding(
            "terminated() is never true, neither with random actions nor in random states; look at "
            "its condition, or leave it out",
            is_sure=False,
        )


def _could_change(subject: Subject, name: str) -> torch.Tensor:
    """Return which columns of a signal that does not change could, `(size,)`.

    A reward term could if a number of the configuration were not 0. An observation could if it
    shows a declared state, such as a command whose range has no width.
    """
    env, (method, key) = subject.env, (name.split("()", maxsplit=1)[0], name.split("'")[1])

    def value() -> torch.Tensor:
        subject.restore()
        return getattr(env, method)()[key].reshape(env.num_envs, -1).double().cpu()

    before, cfg = value(), env.cfg
    if method == "rewards":
        env.cfg = _ones_for_zeros(cfg)
        now = value()
        env.cfg = cfg
        return differs(before, now).any(dim=0)
    found = torch.zeros(before.shape[1], dtype=torch.bool)
    for tensor in subject.declared().values():
        if tensor.is_floating_point():
            subject.restore()
            tensor.add_(1.0)
            now = getattr(env, method)()[key].reshape(env.num_envs, -1).double().cpu()
            found |= differs(before, now).any(dim=0)
    subject.restore()
    return found


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


def dead_actions(subject: Subject) -> Iterator[Finding]:
    """Find actions that change nothing in the simulation, by changing one in each environment."""
    env, count = subject.env, subject.env.num_actions
    actions, others = subject.actions(EFFECT_STEPS, seed=1), subject.actions(EFFECT_STEPS, seed=2)
    plain, envs = roll(env, actions), torch.arange(env.num_envs)
    effects = {name: torch.zeros(count) for name in plain if name.startswith("sim.")}
    for first in range(0, count, env.num_envs):
        subject.restore()
        chosen, changed = (first + envs) % count, actions.clone()
        changed[:, envs, chosen] = others[:, envs, chosen]
        other = roll(env, changed)
        for name, sums in effects.items():
            moved = differs(plain[name], other[name]).any(dim=2).any(dim=0)
            sums.index_add_(0, chosen, moved.float())
    drives = effects.pop("sim.ctrl") > 0
    dead = torch.stack(tuple(effects.values())).sum(dim=0) == 0
    for chosen, why in (
        (dead & drives, "it changes sim.ctrl, but nothing moves; look at the gains and gear of its "
         "actuator in the model, and at the joint that it drives"),
        (dead & ~drives, "apply() does nothing with it, or limits it to one number; write "
         "sim.ctrl[:] from it, or let count_actions() return fewer"),
    ):  # fmt: skip
        if chosen.any():
            some = f"the action{columns(chosen)} changes nothing"
            which = "the actions change nothing" if chosen.all() else some
            yield Finding(f"apply(): {which} within {EFFECT_STEPS} steps: {why}")


def early_ends(run: Outcome) -> Iterator[Finding]:
    """Find that most episodes end at once."""
    lengths, age = list[torch.Tensor](), torch.zeros(run["terminated()"].shape[1])
    for failed in run["terminated()"][1:, :, 0].bool():
        age += 1
        lengths.append(age[failed])
        age = age.masked_fill(failed, 0.0)
    ended = torch.cat(lengths)
    if len(ended) > len(age) and ended.median() <= EARLY:
        yield Finding(
            f"terminated(): true after {ended.median():.0f} steps of most episodes, with random "
            "actions, so that nothing can be learned; let it be true only for what has failed, and "
            "start in reset_worlds() from states that have not (a quaternion is w, x, y, z)"
        )


def ends_by_length(subject: Subject) -> Iterator[Finding]:
    """Find that `terminated` is true at the length at which an episode times out."""
    env, failures = subject.env, list[torch.Tensor]()
    for length in (1, env.max_episode_length):
        subject.restore()
        env.episode_length_buf.fill_(length - 1)
        _, _, dones, extras = env.step(torch.zeros_like(env.action))
        failures.append(dones & ~extras["time_outs"])
    if env.max_episode_length > 1 and bool((failures[1] & ~failures[0]).all()):
        yield Finding(
            f"terminated() is true at {env.max_episode_length} steps whatever the state, so that "
            "time-outs count as failures; leave them to the base class"
        )
