"""Checks steps with random actions: observations, rewards, actions and ends of episodes."""

from ast import literal_eval
from collections.abc import Iterator
from typing import Any

import torch

from mjfleet.env.environment import Env
from mjfleet.tools.check_task.subject import STATE, Finding, Outcome, Subject, columns, differs

STEPS = 99  # Odd, so that what trades places in each step has changed.
ROUNDS = 20  # How often all environments get random states.
EFFECT_STEPS = 20  # Within which an action must change the state, a late motor's too.
SIGNALS = "observe()", "rewards()"  # With which names of outcomes begin.
FAR = 4.0  # Multiple of half a control's range beyond which half of the controls are wrong.


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
                is_last=is_sure,
            )
    states = [found[f"sim.{name}"] for name in STATE if f"sim.{name}" in found]
    return states or list(found.values())


def constant_signals(subject: Subject, run: Outcome, states: Outcome) -> Iterator[Finding]:
    """Find what never changes, neither with random actions nor in random `states`."""
    kind, may_fail = type(subject.env), type(subject.env).terminated is not Env.terminated
    late = subject.from_random_states(ROUNDS, is_late=True)
    for name in (name for name in run if name.startswith(SIGNALS)):
        method, _, written = name.removesuffix("]").partition("()[")
        key, values = literal_eval(written), run[name][1:]
        # In late states, a command differs even if its range has no width.
        every = torch.cat((values, states[name], *[late[name]] * (method == "observe")))
        constant = ~differs(torch.stack(every.flatten(0, 1).aminmax(dim=0)), every[0, 0]).any(dim=0)
        if method == "observe":
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
            f"{', unless its weight is to be 0' * may_be_off}",
            is_sure=not may_be_off,
        )
    failed, failed_late = states["terminated()"] > 0, late["terminated()"] > 0
    if failed_late[::2].all() and not failed[::2].all():  # Both have the same states.
        yield Finding(
            f"terminated() is true at {subject.env.max_episode_length} steps in any state, so that "
            "time-outs count as failures; leave them to the base class"
        )
    for name in ("terminated", "truncated"):
        may_be = getattr(kind, name) is not getattr(Env, name)
        if may_be and not any(outcome[f"{name}()"].any() for outcome in (run, states, late)):
            yield Finding(
                f"{name}() was never true, neither with random actions nor in random states, at "
                "any time of an episode; if it is to be, look at its condition (angles are in rad)",
                is_sure=False,
            )


def dead_actions(subject: Subject) -> Iterator[Finding]:
    """Find actions that change nothing in the simulation, by changing one in each environment."""
    count, envs = subject.env.num_actions, torch.arange(subject.env.num_envs)
    actions, others = subject.actions(EFFECT_STEPS, seed=1), subject.actions(EFFECT_STEPS, seed=2)
    plain, moved = subject.future(actions), torch.zeros(count)
    for first in range(0, count, len(envs)):
        chosen, changed = (first + envs) % count, actions.clone()
        changed[:, envs, chosen] = others[:, envs, chosen]
        future = subject.future(changed)
        for name in (name for name in future if name.startswith("sim.") and name != "sim.ctrl"):
            is_other = differs(plain[name], future[name]).any(dim=2).any(dim=0)
            moved.index_add_(0, chosen, is_other.float())
    if (dead := moved == 0).any():
        which = "the actions change" if dead.all() else f"the action{columns(dead)} changes"
        yield Finding(
            f"apply(): {which} nothing within {EFFECT_STEPS} steps; write sim.ctrl[:] from all of "
            "it, or let count_actions() return fewer; look at gains and gear of the actuator too",
            is_last=bool(dead.all()),
        )


def far_controls(env: Env[Any], run: Outcome) -> Iterator[Finding]:
    """Find controls that are mostly far beyond the range that the engine limits them to."""
    model, controls = env.sim.model, run["sim.ctrl"][1:].flatten(0, 1)
    low, high = torch.from_numpy(model.actuator_ctrlrange).unbind(dim=1)
    sizes = (2 * controls - low - high).abs().median(dim=0).values / (high - low)
    far = (sizes > FAR) & torch.from_numpy(model.actuator_ctrllimited).bool()
    if far.any():
        yield Finding(
            f"apply(): sim.ctrl{columns(far)} is mostly beyond {float(sizes[far].max()):.2g} times "
            "its range in the model, which limits it; write what actuators take (rad, not degrees)"
        )
