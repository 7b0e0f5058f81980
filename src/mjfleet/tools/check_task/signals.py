"""Checks steps with random actions: observations, rewards, actions and ends of episodes."""

from collections.abc import Iterator
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
ROUNDS = 20  # Times that all environments get random states.
EFFECT_STEPS = 20  # Within which an action must change the state, a late motor's too.
SIGNALS = "observe()", "rewards()"  # With which names of outcomes begin.
EARLY = 3  # Steps: episodes that end that soon teach nothing.


def engine_warnings(env: Env[Any]) -> Iterator[Finding]:
    """Find what the engine warns of."""
    for kind, worlds in env.sim.warnings().items():
        yield Finding(
            f"the engine reports {kind} in {worlds} of {env.num_envs} environments; look at the "
            "model, and at what apply() and reset_worlds() write"
        )


def not_finite(outcome: Outcome, where: str, is_sure: bool = True) -> list[Finding]:
    """Find numbers that are not finite; of a bad state, the state alone."""
    found: dict[str, Finding] = {}
    for name, values in outcome.items():
        bad = ~values.isfinite()
        if bad.any():
            share = float(bad.any(dim=2).double().mean())
            found[name] = Finding(
                f"{name}{columns(bad.any(dim=1).any(dim=0))}: not finite in {share:.1%} of "
                f"{where}; limit the argument of a root, logarithm, acos or division, as in "
                "x.clamp(min=1e-6), and look for bodies that overlap",
                is_sure,
            )
    states = [found[f"sim.{name}"] for name in STATE if f"sim.{name}" in found]
    return states or list(found.values())


def constant_columns(values: torch.Tensor) -> torch.Tensor:
    """Return which columns of `(steps, num_envs, size)` change by rounding only, `(size,)`."""
    low, high = values.amin(dim=(0, 1)), values.amax(dim=(0, 1))
    return high - low <= 1e-7 + 1e-6 * torch.maximum(high.abs(), low.abs())


def constant_signals(subject: Subject, run: Outcome, states: Outcome) -> Iterator[Finding]:
    """Find what never changes, neither with random actions nor in random `states`."""
    may_fail = subject.overrides("terminated")
    for name in (name for name in run if name.startswith(SIGNALS)):
        (method, key), values = (name.split("()", maxsplit=1)[0], name.split("'")[1]), run[name][1:]
        constant = constant_columns(torch.cat((values, states[name])))
        if method == "observe":
            constant &= ~_shown_states(subject, key)
            if subject.env.get_observations()[key].ndim > 2:
                constant &= constant.all()  # Parts of an image may stay as they are.
        elif key in subject.env._off or (may_fail and (values[0, 0] > 0).all()):
            continue  # It has no weight, or pays for each step without a failure.
        first = values[0, 0][constant]
        if not constant.any():
            continue
        numbers = ", ".join(f"{float(number) + 0:g}" for number in first[:4])
        where = "" if constant.all() else columns(constant)
        may_be_off = method == "rewards" and not first.any()
        yield Finding(
            f"{name}{where}: {numbers}{', ...' * (len(first) > 4)} in all environments and steps, "
            "so that nothing is learned from it; compute it from the state, or leave it out"
            + ", unless its weight is to be 0"
            * may_be_off,
            is_sure=not may_be_off,
        )
    if may_fail and not any(each["terminated()"].any() for each in (run, states)):
        yield Finding(
            "terminated() is never true, neither with random actions nor in random states; look at "
            "its condition, or leave it out",
            is_sure=False,
        )


def _shown_states(subject: Subject, group: str) -> torch.Tensor:
    """Return which columns of an observation show declared state, `(size,)`, such as a command
    whose range has no width."""

    def value() -> torch.Tensor:
        return subject.env.observe()[group].reshape(subject.env.num_envs, -1).double().cpu()

    subject.restore()
    before = value()
    subject.restore()
    for tensor in subject.declared().values():
        if tensor.is_floating_point():
            tensor.add_(torch.rand_like(tensor))
    after = value()
    subject.restore()
    return differs(before, after).any(dim=0)


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
