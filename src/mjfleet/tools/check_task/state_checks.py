"""What a task remembers: what is declared, what resets do to it, and who may write it."""

import random
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from mujoco import mjtJoint

from mjfleet.env import Env
from mjfleet.env.contract import EnvContract
from mjfleet.env.undeclared_changes import changes, look
from mjfleet.sim.simulation import DERIVED_FIELDS
from mjfleet.tools.check_task.subject import (
    Finding,
    Outcome,
    Subject,
    differs,
    is_equal_in_all,
    roll,
)

RESETS = 30  # After which a change that adds up has grown.
GROWTH = 2.5  # Factor by which it must have grown.
BEYOND = 0.1  # Share of a joint's range by which a start may be outside of it.
OFTEN = 0.05  # Share of environments in which something must be wrong before it is reported.
WRITERS = {
    "rewards": "after_physics()", "terminated": "after_physics()", "metrics": "after_physics()",
    "debug_vis": "after_physics()", "commands": "reset_worlds()",
}  # fmt: skip
"""Methods that write nothing, and where to write instead."""


def global_generators() -> dict[str, Any]:
    """Return what changes when the generator of torch, NumPy or Python is drawn from."""
    states = {
        "torch's": torch.get_rng_state().numpy(),
        "NumPy's": np.random.get_state(),
        "Python's": repr(random.getstate()),
    }
    return look(states)


def global_draws(before: dict[str, Any], where: str) -> Iterator[Finding]:
    """Find generators that have been drawn from since; `where` names the code that did so."""
    for owner in changes(before, global_generators()):
        yield Finding(
            f"{where} draws from {owner} global generator, which the learner draws from too: "
            "workers and resumed runs would not get the numbers that they should; draw with "
            "self.uniform and self.normal"
        )


def undeclared(subject: Subject) -> Iterator[Finding]:
    """Find attributes that change and are not declared, and those that are not looked at."""
    yield from map(Finding, subject.env.undeclared().values())
    if unseen := subject.env.unseen():
        yield Finding(
            f"self.{', self.'.join(unseen)}: of a type that is not looked at; if it changes in a "
            "step, no checkpoint holds that: declare what changes by self.add_state in setup()",
            is_sure=False,
        )


def misspelt_methods(subject: Subject) -> Iterator[Finding]:
    """Find methods whose name is nearly that of one which the task leaves out."""
    absent = [name for name in vars(EnvContract) if name[0] != "_" and not subject.overrides(name)]
    for name in sorted(set(dir(type(subject.env))) - set(dir(Env))):
        if meant := get_close_matches(name, absent, 1, 0.85):
            text = f"mjfleet never calls {name}(); did you mean {meant[0]}()?"
            yield Finding(text, is_sure=False)


def written_model(subject: Subject) -> Iterator[Finding]:
    """Find fields of the simulation's model that are not as make_model() returns them."""
    env = subject.env
    made, again = (_numbers(type(env).make_model(env.cfg)) for _ in range(2))
    if name := next(_unequal(made, again), None):
        yield Finding(
            f"make_model() returns another {name} each time: workers, and runs that resume, would "
            "not train on the same model; let random numbers in it have a fixed seed"
        )
        return
    for name in _unequal(made, _numbers(env.sim.model)):
        is_array = isinstance(made[name], np.ndarray)
        how = f"write rows of sim.expand({name!r})" if is_array else "set it in make_model()"
        yield Finding(
            f"sim.model.{name} is written after make_model(), which MuJoCo-Warp does not see, "
            f"nor any world alone: {how}"
        )


def _unequal(made: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    for name, value in made.items():
        if not np.array_equal(value, now[name], equal_nan=np.asarray(value).dtype.kind == "f"):
            yield name


def _numbers(model: Any) -> dict[str, Any]:
    """Return the numbers of a model and of its options. Engines themselves write the flags."""
    found = {name: getattr(model, name) for name in dir(model)}
    found = {name: each for name, each in found.items() if isinstance(each, np.ndarray)}
    options = (name for name in dir(model.opt) if name[0] != "_" and name != "disableflags")
    return found | {f"opt.{name}": getattr(model.opt, name) for name in options}


def who_writes(subject: Subject) -> Iterator[Finding]:
    """Find methods that write what they must not, in random states."""
    env, generator = subject.env, torch.Generator().manual_seed(16)
    for method, better in WRITERS.items():
        subject.restore()
        subject.write_random_states(generator)
        before, numbers = subject.state(), env.generator.get_state()
        getattr(env, method)()
        changed = [k for k, now in subject.state().items() if differs(before[k], now).any()]
        if not torch.equal(env.generator.get_state(), numbers):
            changed.append("the random numbers that follow")
        if changed:
            yield Finding(
                f"{method}() changes {changed[0]}, and is also called at other times than once in "
                f"a step; write it in {better}"
            )


def reset_leaks(subject: Subject) -> Iterator[Finding]:
    """Reset every second environment and find what changed in the others."""
    env = subject.env
    kept = torch.arange(env.num_envs, device=env.device) % 2 == 0
    before = subject.state()
    env._reset(~kept)
    for name, now in subject.state().items():
        same = ~differs(now[kept], before[name][kept])
        # Some may change, as by a timer.
        if same.view(int(kept.sum()), -1).all(dim=1).float().mean() < 0.75:
            yield Finding(
                f"reset_worlds(mask): changes {name} where mask is false; write "
                "torch.where(mask, new, old), with mask.unsqueeze(1) for (num_envs, size)"
            )


def stale_reads(subject: Subject) -> Iterator[Finding]:
    """Find that a first state follows from positions or sensors of the episode before.

    `reset_worlds` runs again with other numbers where it would read these.
    """
    env, outcomes = subject.env, []
    derived = [getattr(env.sim, name) for name in DERIVED_FIELDS if name in vars(env.sim)]
    for by in (0.0, 0.25, -40.0):
        subject.restore()
        env.sim.reset(subject.everywhere)
        env._states.reset(subject.everywhere)
        for field in derived:
            field.add_(by)
        env.reset_worlds(subject.everywhere)
        outcomes.append(subject.state())
    for name in outcomes[0]:
        if any(bool(differs(outcomes[0][name], other[name]).any()) for other in outcomes[1:]):
            yield Finding(
                f"reset_worlds(): {name} follows from positions or sensors that it reads: these "
                "are still those of the episode that has ended, and are computed anew only after "
                "reset_worlds(); compute it from what you write to sim.qpos, or keep it in "
                "end_episode() if it belongs to that episode"
            )
            return


def variations(subject: Subject) -> Iterator[Finding]:
    """Find what drifts with each reset, and what varies but is equal in all environments."""
    env, sim = subject.env, subject.env.sim
    by_vary = {place.name for one in env.variations for place in one.places}
    fields = {f"sim.expand({name!r})": name for name in sim.expanded}
    own = {key: torch.as_tensor(sim.of_model(name)).to(sim.qpos) for key, name in fields.items()}

    def distances() -> dict[str, float]:
        """Return the mean distance of each field from that of the model."""
        now = subject.state()
        return {key: float((now[key] - one).abs().mean()) for key, one in own.items()}

    env._reset(subject.everywhere)
    early = distances()
    for _ in range(RESETS):
        env._reset(subject.everywhere)
    for key, late in distances().items():
        if early[key] > 1e-6 * own[key].abs().mean() and late > GROWTH * early[key]:
            yield Finding(
                f"{key} drifts away with each reset: a new value is drawn from the last one; keep "
                "a copy of the first values in setup(), and vary that"
            )
    before = subject.state() | own
    env._reset(subject.everywhere)
    for key, now in subject.state().items():
        is_new = fields.get(key) not in by_vary and bool(differs(now, before[key]).any())
        if is_new and is_equal_in_all(now):
            yield Finding(
                f"setup() or reset_worlds(): draws {key} the same for all environments; draw "
                "(num_envs, size) numbers with self.uniform or self.normal"
            )


def idle_variations(subject: Subject, actions: torch.Tensor) -> Iterator[Finding]:
    """Find calls of `vary` with the same numbers everywhere, or without an effect.

    Half of the environments start in random states, and all take the `actions`.
    """
    env = subject.env
    outcome: Outcome = {}

    def future() -> Outcome:
        """Return what the actions lead to, and restore the state."""
        half = slice(env.num_envs // 2)
        subject.write_random_states(torch.Generator().manual_seed(17), half)
        found = {name: values[1:] for name, values in roll(env, actions).items()}
        subject.restore()
        return found

    for one in env.variations:
        now = torch.cat([place.field.index_select(1, place.at) for place in one.places], dim=1)
        own = torch.cat([place.own.flatten() for place in one.places])
        is_wide = one.low < one.high
        if not differs(now, own.expand_as(now)).any():
            if is_wide:
                yield Finding(f"{one}: scales numbers that are 0 in the model; add or set them")
            continue
        if is_equal_in_all(now) and not one.shared:
            yield Finding(
                f"{one}: is the same in all environments, by its range of {one.range}; widen it, "
                "or change the model, or write shared=True if that is meant",
                is_sure=is_wide,
            )
            continue
        outcome = outcome or future()
        one.undo()
        if all(torch.equal(outcome[name], other) for name, other in future().items()):
            yield Finding(
                f"{one}: changes nothing within {len(actions)} steps; see which names `mjfleet "
                "tasks` shows. Where two geoms touch, the larger friction counts, or that of the "
                "geom with the higher priority",
                is_sure=False,
            )


def first_states(subject: Subject) -> Iterator[Finding]:
    """Find starts with joints beyond their limits."""
    env = subject.env
    env._reset(subject.everywhere)
    model, qpos = env.sim.model, env.sim.qpos.double().cpu()
    for joint in np.flatnonzero(model.jnt_limited):
        low, high = (float(end) for end in model.jnt_range[joint])
        values, slack = qpos[:, model.jnt_qposadr[joint]], BEYOND * (high - low)
        beyond = (values < low - slack) | (values > high + slack)
        if model.jnt_type[joint] != mjtJoint.mjJNT_BALL and beyond.double().mean() > OFTEN:
            yield Finding(
                f"reset_worlds(): episodes start with joint {model.joint(joint).name or joint} at "
                f"{float(values.min()):.3g} to {float(values.max()):.3g}, beyond its range of "
                f"{low:.3g} to {high:.3g} in the model, so that it is thrown back; write positions "
                "in rad or m within it, or mend the range: degrees, unless the model has "
                '<compiler angle="radian"/>'
            )
