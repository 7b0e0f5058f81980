"""Checks a task's state: what is declared, what resets do to it, and who may write it."""

import math
import random
import sys
from collections.abc import Callable, Collection, Iterator
from difflib import get_close_matches
from functools import partial
from inspect import signature
from typing import Any

import numpy as np
import torch
from mujoco import mjtJoint

from mjfleet.env import Env
from mjfleet.env.contract import EnvContract
from mjfleet.env.undeclared_changes import changes, look
from mjfleet.sim.simulation import DERIVED_FIELDS
from mjfleet.tools.check_task.subject import Finding, Outcome, Subject, all_equal, differs

BEYOND = 0.1  # Share of a joint's range by which a start may be outside of it.
SPINS = 4 * math.pi  # Angle at which no episode needs to start, rad.
OFTEN = 0.05  # Share of environments in which something must be wrong before it is reported.
SOON = 10  # Steps within which most variations have an effect; the others get all steps.
WRITERS = ("rewards", "terminated", "truncated", "metrics", "debug_vis", "commands", "observe")
UNOBSERVED = ("sim.time", "sim.qpos", "sim.qvel", "sim.act")
"""What `observe` must not write. It may move targets, and draw noise."""


def outside(packages: Collection[str] = ()) -> dict[str, Any]:
    """Return what outlasts an environment: generators, variables of modules and their classes."""
    states = torch.get_rng_state().numpy(), np.random.get_state(), repr(random.getstate())
    found: dict[str, Any] = dict(zip(("torch's", "NumPy's", "Python's"), states, strict=True))
    for module in [m for name, m in sys.modules.items() if name.partition(".")[0] in packages]:
        values = [*vars(module).values()]
        kinds = (k for k in values if isinstance(k, type) and k.__module__ == module.__name__)
        for owner in (module, *kinds):
            name = owner.__name__.rpartition(".")[2]
            found |= {f"{name}.{k}": value for k, value in vars(owner).items() if k[:2] != "__"}
    return look(found)


def outlasting(
    before: dict[str, Any], where: str, packages: Collection[str] = ()
) -> dict[str, Finding]:
    """Return, by name, what has changed since `outside`; `where` names the code that did so."""
    draws = (
        "{} draws from {} global generator, as the learner does, so that workers and resumed runs "
        "get other numbers; draw with self.uniform and self.normal"
    )
    writes = (
        "{} changes {}, a variable of a module or class, which outlasts the environment and which "
        "no checkpoint holds; declare it by self.add_state in setup()"
    )
    names = changes(before, outside(packages))
    return {k: Finding((draws if k.endswith("'s") else writes).format(where, k)) for k in names}


def undeclared(subject: Subject) -> Iterator[Finding]:
    """Find attributes that change and are not declared, and those that are not looked at."""
    yield from map(Finding, subject.env.undeclared().values())
    if unseen := subject.env.unseen():
        yield Finding(
            f"self.{', self.'.join(unseen)}: of a type that is not looked at; if it changes in a "
            "step, no checkpoint holds that: declare what changes by self.add_state in setup()",
            is_sure=False,
        )


def unfit_methods(kind: type[Any]) -> Iterator[str]:
    """Find methods that cannot be called as mjfleet calls them, before any of them is."""
    hooks = {name: getattr(EnvContract, name) for name in vars(EnvContract) if name[0] != "_"}
    for name, hook in ((name, hook) for name, hook in hooks.items() if callable(hook)):
        given = signature(hook)
        try:
            signature(getattr(kind, name)).bind(*given.parameters)
        except TypeError as error:
            yield f"{kind.__name__}.{name}(): {error}; mjfleet calls it as {name}{given}"


def misspelt_methods(subject: Subject) -> Iterator[Finding]:
    """Find methods whose name is nearly that of one which the task leaves out."""
    kind, names = type(subject.env), [name for name in vars(EnvContract) if name[0] != "_"]
    absent = [name for name in names if getattr(kind, name) is getattr(Env, name)]
    for name in sorted(set(dir(kind)) - set(dir(Env))):
        if near := get_close_matches(name, absent, 1, 0.85):
            text = f"mjfleet never calls {name}(); did you mean {near[0]}()?"
            yield Finding(text, is_sure=False)


def written_model(subject: Subject) -> Iterator[Finding]:
    """Find fields of the simulation's model that are not as make_model() returns them."""
    env = subject.env
    made, again = (_numbers(type(env).make_model(env.cfg)) for _ in range(2))
    if names := changes(look(made), look(again)):
        yield Finding(
            f"make_model() returns another {names[0]} each time: workers, and runs that resume, "
            "would not train on the same model; let random numbers in it have a fixed seed"
        )
        return
    for name in changes(look(made), look(_numbers(env.sim.model))):
        is_array = isinstance(made[name], np.ndarray)
        how = f"write rows of sim.expand({name!r})" if is_array else "set it in make_model()"
        yield Finding(
            f"sim.model.{name} is written after make_model(), which MuJoCo-Warp never sees: {how}"
        )


def _numbers(model: Any) -> dict[str, Any]:
    """Return the numbers of a model and of its options. Engines themselves write the flags."""
    owners, kinds = {"": model, "opt.": model.opt}.items(), (np.ndarray, int, float)
    found = {f"{at}{k}": getattr(one, k) for at, one in owners for k in dir(one) if k[0] != "_"}
    return {k: v for k, v in found.items() if isinstance(v, kinds) and k != "opt.disableflags"}


def who_writes(subject: Subject) -> Iterator[Finding]:
    """Find methods that write what they must not, in random states."""
    env, generator = subject.env, torch.Generator().manual_seed(16)
    for method in WRITERS:
        subject.restore()
        subject.write_random_states(generator)
        before, numbers = subject.state(), env.generator.get_state()
        returned = getattr(env, method)()
        if method == "rewards":
            env.compute(returned)
        changed = [k for k, now in subject.state().items() if differs(before[k], now).any()]
        if method == "observe":
            changed = [name for name in changed if name in UNOBSERVED]
        elif not torch.equal(env.generator.get_state(), numbers):
            changed.append("the random numbers that follow")
        if changed:
            yield Finding(
                f"{method}() changes {changed[0]}, and is also called at other times than once in "
                "a step; write it in apply(), after_physics() or reset_worlds()"
            )


def reset_leaks(subject: Subject) -> Iterator[Finding]:
    """Reset every second environment and find what changed in the others."""
    env = subject.env
    kept = torch.arange(env.num_envs, device=env.device) % 2 == 0
    before = subject.state()
    env._reset(~kept)
    for name, now in subject.state().items():
        same = ~differs(now[kept], before[name][kept])
        if same.view(int(kept.sum()), -1).all(dim=1).float().mean() < 0.75:  # Timers may do so.
            yield Finding(
                f"reset_worlds(mask): changes {name} where mask is false; write "
                "torch.where(mask, new, old), with mask.unsqueeze(1) for (num_envs, size)"
            )


def stale_reads(subject: Subject) -> Iterator[Finding]:
    """Find what `reset_worlds` computes from positions, sensors, which are not yet the new state's,
    or fields of `expand`: it runs again with other numbers there."""
    env, one = subject.env, dict[str, torch.Tensor]()
    derived = [getattr(env.sim, name) for name in DERIVED_FIELDS if name in vars(env.sim)]
    for by in (0.0, 0.25, -40.0):
        subject.restore()
        env.sim.reset(subject.everywhere)
        env._states.reset(subject.everywhere)
        for field in derived:
            field.add_(by)
        for field in env.sim.expanded.values():
            field.mul_(1 + 0.01 * by)
        before = subject.state()
        env.reset_worlds(subject.everywhere)
        one = one or subject.state()
        for name, now in subject.state().items():
            if (differs(one[name], now) & differs(before[name], now)).any():  # A reset writes it.
                yield Finding(
                    f"reset_worlds(): {name} follows from what the last episode has left, such as "
                    "sensors that are not yet new, or values whose changes add up; compute it from "
                    "what you write to sim.qpos, from a copy made in setup(), or in end_episode()"
                )
                return


def variations(subject: Subject) -> Iterator[Finding]:
    """Find what varies from reset to reset, but is equal in all environments."""
    env, sim = subject.env, subject.env.sim
    by_vary = {f"sim.expand({place.name!r})" for one in env.variations for place in one.places}
    env._reset(subject.everywhere)
    own = {f"sim.expand({k!r})": torch.as_tensor(sim.of_model(k)) for k in sim.expanded}
    before = subject.state() | own
    env._reset(subject.everywhere)
    equal = {key: now for key, now in subject.state().items() if all_equal(now)}
    for key, now in equal.items():
        if key not in by_vary and differs(now, before[key].to(now)).any():
            yield Finding(
                f"setup() or reset_worlds(): draws {key} the same for all environments; draw "
                "(num_envs, size) numbers with self.uniform or self.normal"
            )
    if len(equal) == len(subject.state()):
        yield Finding(
            "reset_worlds(): all episodes start in the same state, so that a policy knows no other "
            "one; draw positions and velocities with self.uniform or self.normal",
            is_sure=False,
        )


def idle_variations(subject: Subject, actions: torch.Tensor) -> Iterator[Finding]:
    """Find calls of `vary` with the same numbers everywhere, or without an effect on what the
    `actions` lead to, in half of the environments from random states."""
    env, outcomes = subject.env, dict[int, Outcome]()

    def begin(undo: Callable[[], object] = lambda: None) -> None:
        undo()
        subject.write_random_states(torch.Generator().manual_seed(17), slice(env.num_envs // 2))

    for one in env.variations:
        now = torch.cat([place.field.index_select(1, place.at) for place in one.places], dim=1)
        own = torch.cat([place.own.flatten() for place in one.places])
        is_idle, is_wide = not differs(now, own.expand_as(now)).any(), one.low < one.high
        if is_idle or (all_equal(now) and not one.shared):
            why = "since it scales zeros" if is_idle else f"by its range of {one.range}"
            text = f"{one}: is the same in all environments, {why}; widen it, add or set numbers"
            if is_wide or not is_idle:
                yield Finding(f"{text}, or write shared=True if that is meant", is_sure=is_wide)
            continue
        for steps in (SOON, len(actions)):
            if steps not in outcomes:
                outcomes[steps] = subject.future(actions[:steps], begin)
            without = subject.future(actions[:steps], partial(begin, one.undo))
            if not all(torch.equal(x[1:], without[k][1:]) for k, x in outcomes[steps].items()):
                break
        else:
            yield Finding(
                f"{one}: changes nothing within {len(actions)} steps; `mjfleet tasks` shows names. "
                "Where geoms touch, the larger friction counts, or that of the higher priority",
                is_sure=False,
            )


def first_states(subject: Subject) -> Iterator[Finding]:
    """Find starts with joints beyond their limits, or turned around several times."""
    env = subject.env
    env._reset(subject.everywhere)
    model, qpos = env.sim.model, env.sim.qpos.double().cpu()
    for joint in np.flatnonzero(model.jnt_limited | (model.jnt_type == mjtJoint.mjJNT_HINGE)):
        is_limited = bool(model.jnt_limited[joint])
        low, high = model.jnt_range[joint] if is_limited else (-SPINS, SPINS)
        values, slack = qpos[:, model.jnt_qposadr[joint]], BEYOND * (high - low)
        beyond = (values < low - slack) | (values > high + slack)
        if model.jnt_type[joint] != mjtJoint.mjJNT_BALL and beyond.double().mean() > OFTEN:
            yield Finding(
                f"reset_worlds(): episodes start with joint {model.joint(joint).name or joint} at "
                f"{float(values.min()):.3g} to {float(values.max()):.3g}, beyond "
                f"{'its range in the model' if is_limited else 'two turns'}, {low:.3g} to "
                f'{high:.3g}; write positions in rad or m (without <compiler angle="radian"/>, '
                "a model has degrees)"
            )
