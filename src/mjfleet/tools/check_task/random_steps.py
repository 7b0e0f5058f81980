"""Steps with random actions, and what their observations, rewards and controls tell."""

import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from mjfleet.env.environment import Env
from mjfleet.tools.check_task.constant_signals import constant_columns
from mjfleet.tools.check_task.finding import Finding, columns
from mjfleet.tools.check_task.subject import STATE, Births, Outcome, Subject

STEPS = 100
MOST = 10.0
LEAST = 0.02
"""Root mean squares of an observation beyond which a network that does not normalise learns badly.
"""
LARGE_REWARD = 1000.0
"""Root mean square of a reward term per step beyond which no critic follows the returns."""
SATURATED = 0.95  # Share of steps in which a control is at its limit, and should not be.
SIGN_LIKE = {"sign", "gt", "lt", "ge", "le", "__gt__", "__lt__", "__ge__", "__le__", "argmax"}
"""Functions by which a task chooses one end of a range on purpose."""


def take_random_steps(subject: Subject) -> tuple[Outcome, Births]:
    """Take STEPS steps with an untrained policy's actions, with controls and forces."""

    def before_step() -> None:
        # A policy draws in each step too, so that a task which seeds generators anew is noticed.
        torch.rand(()), np.random.rand(), random.random()  # pyright: ignore[reportUnusedExpression]
        subject.env.debug_vis()

    fields = (*STATE, "ctrl", "actuator_force")
    return subject.steps(subject.actions(STEPS), before_step, fields)


def engine_warnings(env: Env[Any]) -> Iterator[Finding]:
    for kind, worlds in env.sim.warnings().items():
        yield Finding(
            f"the engine reports {kind} in {worlds} of {env.num_envs} worlds; look at the model, "
            "and at what apply() and reset_worlds() write"
        )


def not_finite(run: Outcome, births: Births) -> list[Finding]:
    """Find numbers that are not finite; of a bad state, the state alone."""
    found: dict[str, Finding] = {}
    for name, values in run.items():
        bad = ~values.isfinite()
        if bad.any():
            worlds = int(bad.any(dim=2).any(dim=0).sum())
            first = int(bad.any(dim=2).any(dim=1).nonzero()[0])
            text = (
                f"{name}{columns(bad.any(dim=1).any(dim=0))}: not finite, first in step "
                f"{first}, in {worlds} of {bad.shape[1]} worlds; look for divisions by zero, "
                "roots, logarithms and bodies that overlap"
            )
            found[name] = Finding(text, births.get(name))
    states = [found[f"sim.{name}"] for name in STATE if f"sim.{name}" in found]
    return states or list(found.values())


def unscaled_observations(subject: Subject, run: Outcome) -> Iterator[Finding]:
    """Find columns that are too large or small for networks that do not normalise them."""
    agent, seen = subject.agent, dict[str, str]()
    for network, groups in (("actor", agent.obs_groups.actor), ("critic", agent.obs_groups.critic)):
        if not getattr(agent, network).obs_normalization:
            seen = dict.fromkeys(groups, network) | seen
    for group, network in seen.items():
        name = f"observe()[{group!r}]"
        size = run[name].square().mean(dim=(0, 1)).sqrt()
        large = (size > MOST) & size.isfinite()
        small = (size < LEAST) & ~constant_columns(run[name])
        for wrong, word in ((large, "large"), (small, "small")):
            if wrong.any():
                yield Finding(
                    f"{name}{columns(wrong)}: {word}, root mean square {_range(size[wrong])}; "
                    f"scale it to about 1, or set agent.{network}.obs_normalization",
                    subject.place_of(name, int(wrong.nonzero()[0])),
                )


def large_rewards(subject: Subject, run: Outcome) -> Iterator[Finding]:
    """Find reward terms that no critic can follow, as squared accelerations without a weight."""
    for name, values in run.items():
        size = float(values[1:].square().mean().sqrt())
        if name.startswith("rewards()") and LARGE_REWARD < size < math.inf:
            yield Finding(
                f"{name}: large, root mean square {size:.2g} in each step; multiply it by a "
                "smaller weight, so that the sum of all terms is about 1",
                subject.place_of(name),
                is_sure=False,
            )


def saturated_actuators(subject: Subject, run: Outcome) -> Iterator[Finding]:
    """Find actuators whose control or force is at a limit whatever the policy does."""
    model, trace = subject.env.sim.model, subject.trace
    # An actuator may have several controls, and several forces, whose norm alone is limited.
    of_control, of_force = (
        np.repeat(np.arange(model.nactuator), numbers)
        for numbers in (model.actuator_ctrlnum, model.actuator_outnum)
    )
    one_force = model.actuator_forcelimited & (model.actuator_outnum == 1)
    forces = one_force[of_force], model.actuator_forcerange[of_force]
    for what, field, owners, limited, limits in (
        ("control", "ctrl", of_control, model.actuator_ctrllimited, model.actuator_ctrlrange),
        ("force", "actuator_force", of_force, *forces),
    ):
        values = run[f"sim.{field}"][1:]
        low, high = torch.as_tensor(limits).double().unbind(1)
        slack = 1e-6 * (high - low)
        at_end = (values <= low + slack) | (values >= high - slack)
        beyond = (values < low - slack) | (values > high + slack)
        share = at_end.double().mean(dim=(0, 1))
        bang_bang = trace.names.get("apply", set()) & SIGN_LIKE and not beyond.any()
        bad = (share > SATURATED) & torch.as_tensor(limited.astype(bool))
        if bad.any() and not (what == "control" and bang_bang):
            found = dict.fromkeys(owners[bad.numpy()].tolist())
            names = [model.actuator(i).name or str(i) for i in found]
            yield Finding(
                f"the {what} of actuator {', '.join(names)} is at its limit in "
                f"{float(share[bad].min()):.0%} of all steps with random actions of about "
                "1, so that the policy hardly changes it; scale the action in apply(), or widen "
                f"{'ctrlrange' if what == 'control' else 'forcerange'} in the model",
                trace.writer_of(subject.env.sim.ctrl),
            )


def _range(values: torch.Tensor) -> str:
    low, high = f"{values.min():.2g}", f"{values.max():.2g}"
    return low if low == high else f"{low} to {high}"
