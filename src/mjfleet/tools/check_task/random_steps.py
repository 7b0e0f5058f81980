"""Steps with random actions, and what their observations, rewards and controls tell."""

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad

from mjfleet.config import AgentConfig
from mjfleet.env.environment import Env
from mjfleet.env.learnability import constant_columns, constant_observation, constant_reward
from mjfleet.env.step_recorder import RESULTS, StepRecorder
from mjfleet.tools.check_task.call_trace import CallTrace
from mjfleet.tools.check_task.finding import Finding, Place

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

Signals = dict[str, torch.Tensor]
"""Observation groups `(1 + STEPS, num_envs, size)`, the initial ones first, and reward terms
`(1 + STEPS, num_envs, 1)`, whose first row is zero; on the CPU, float64."""


@dataclass
class RandomSteps:
    """What happened in some steps with random actions."""

    signals: Signals
    states: Signals  # By "sim.<field>", `(1 + STEPS, num_envs, size)`.
    controls: torch.Tensor  # After apply(), `(STEPS, num_envs, nu)`.
    forces: torch.Tensor  # At the end of each step, `(STEPS, num_envs, nu)`.
    failures: torch.Tensor  # `(STEPS, num_envs)`, bool; time-outs excluded.
    births: dict[str, Place | None] = field(default_factory=dict)
    """Where a signal that is not finite came from, by its name."""


def record(env: Env[Any]) -> None:
    """Record the steps from now on, the arrows of all worlds too."""
    env.recorder = StepRecorder(STEPS)
    env.recorder.shown = env.num_envs


def take_random_steps(env: Env[Any], trace: CallTrace, agent: AgentConfig) -> RandomSteps:
    """Run an environment, whose steps are recorded, with an untrained policy's actions."""
    recorder = env.recorder
    assert recorder
    seen, forces, failures = [env.get_observations()], [], []
    births: dict[str, Place | None] = {}
    for action in random_actions(env, agent, STEPS):
        # A policy draws in each step too, so that a task which seeds generators anew is noticed.
        torch.rand(()), np.random.rand(), random.random()  # pyright: ignore[reportUnusedExpression]
        observations, _, dones, extras = env.step(action)
        seen.append(observations)
        forces.append(env.sim.actuator_force.clone())
        failures.append(dones & ~extras["time_outs"])
        births = trace.births() | births
    signals = {
        f"observe()[{name!r}]": torch.stack([x[name].flatten(1) for x in seen]).double().cpu()
        for name in seen[0].keys()  # noqa: SIM118  # Of a TensorDict.
    }
    # A row of zeros comes first, so that a row's index is the number of its step.
    recorded = {k: v.double().cpu() for k, v in recorder.tensors.items() if v.ndim == 3}
    steps = {name: pad(values, (0, 0, 0, 0, 1, 0)) for name, values in recorded.items()}
    for name, term in zip(env.reward_names, steps["terms"].split(1, dim=2), strict=True):
        signals[f"rewards()[{name!r}]"] = term
    return RandomSteps(
        signals=signals,
        states={f"sim.{f}": steps[f"end/{f}"] for f in RESULTS if f"end/{f}" in steps},
        controls=recorded.get("start/ctrl", torch.zeros(STEPS, env.num_envs, 0)),
        forces=torch.stack(forces).double().cpu(),
        failures=torch.stack(failures).cpu(),
        births=births,
    )


def random_actions(env: Env[Any], agent: AgentConfig, steps: int, seed: int = 0) -> torch.Tensor:
    """Return what an untrained policy would do, `(steps, num_envs, number of actions)`."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(steps, env.num_envs, env.num_actions, generator=generator)
    return (agent.actor.distribution.init_std * noise).to(env.device)


def engine_warnings(env: Env[Any]) -> Iterator[Finding]:
    for kind, worlds in env.sim.warnings().items():
        yield Finding(
            f"the engine reports {kind} in {worlds} of {env.num_envs} worlds; look at the model, "
            "and at what apply() and reset_worlds() write"
        )


def find_not_finite(run: RandomSteps) -> Iterator[Finding]:
    """Find numbers that are not finite; of a bad state, the state alone."""
    bad_states = list(not_finite(run.states, {}))
    yield from bad_states or not_finite(run.signals, run.births)


def not_finite(
    signals: Mapping[str, torch.Tensor], births: Mapping[str, Place | None]
) -> Iterator[Finding]:
    for name, values in signals.items():
        bad = ~values.isfinite()
        if bad.any():
            worlds = int(bad.any(dim=2).any(dim=0).sum())
            first = int(bad.any(dim=2).any(dim=1).nonzero()[0])
            yield Finding(
                f"{name}{columns(bad.any(dim=1).any(dim=0))}: not finite, first in step "
                f"{first}, in {worlds} of {bad.shape[1]} worlds; look for divisions by zero, "
                "roots, logarithms and bodies that overlap",
                births.get(name),
            )


def unscaled_observations(
    signals: Mapping[str, torch.Tensor], agent: AgentConfig, trace: CallTrace
) -> Iterator[Finding]:
    """Find columns that are too large or small for networks that do not normalise them."""
    seen: dict[str, str] = {}
    for network, groups in (("actor", agent.obs_groups.actor), ("critic", agent.obs_groups.critic)):
        if not getattr(agent, network).obs_normalization:
            seen = dict.fromkeys(groups, network) | seen
    for group, network in seen.items():
        values = signals[f"observe()[{group!r}]"]
        size = values.square().mean(dim=(0, 1)).sqrt()
        large, small = (size > MOST) & size.isfinite(), (size < LEAST) & ~constant_columns(values)
        for wrong, word in ((large, "large"), (small, "small")):
            if wrong.any():
                yield Finding(
                    f"observe()[{group!r}]{columns(wrong)}: {word}, root mean square "
                    f"{_range(size[wrong])}; scale it to about 1, or set "
                    f"agent.{network}.obs_normalization",
                    trace.place_of("observe", group, int(wrong.nonzero()[0])),
                )


def large_rewards(signals: Mapping[str, torch.Tensor], trace: CallTrace) -> Iterator[Finding]:
    """Find reward terms that no critic can follow, as squared accelerations without a weight."""
    for name, values in signals.items():
        size = float(values[1:].square().mean().sqrt())
        if name.startswith("rewards()") and LARGE_REWARD < size < math.inf:
            yield Finding(
                f"{name}: large, root mean square {size:.2g} in each step; multiply it by a "
                "smaller weight, so that the sum of all terms is about 1",
                trace.place_of("rewards", name.split("'")[1]),
                is_sure=False,
            )


def saturated_actuators(env: Env[Any], run: RandomSteps, trace: CallTrace) -> Iterator[Finding]:
    """Find actuators whose control or force is at a limit whatever the policy does."""
    model = env.sim.model
    if run.controls.shape[2] != model.nu:
        return
    for limited, limits, values, what in (
        (model.actuator_ctrllimited, model.actuator_ctrlrange, run.controls, "control"),
        (model.actuator_forcelimited, model.actuator_forcerange, run.forces, "force"),
    ):
        low, high = torch.as_tensor(limits).double().unbind(1)
        slack = 1e-6 * (high - low)
        at_end = (values <= low + slack) | (values >= high - slack)
        beyond = (values < low - slack) | (values > high + slack)
        share = at_end.double().mean(dim=(0, 1))
        bang_bang = trace.names.get("apply", set()) & SIGN_LIKE and not beyond.any()
        bad = (share > SATURATED) & torch.as_tensor(limited.astype(bool))
        if bad.any() and not (what == "control" and bang_bang):
            names = [model.actuator(int(i)).name or str(int(i)) for i in bad.nonzero()]
            place = trace.writer_of(env.sim.ctrl)
            yield Finding(
                f"the {what} of actuator {', '.join(names)} is at its limit in "
                f"{float(share[bad].min()):.0%} of all steps with random actions of about "
                "1, so that the policy hardly changes it; scale the action in apply(), or widen "
                f"{'ctrlrange' if what == 'control' else 'forcerange'} in the model",
                place,
            )


def constant_signals(
    env: Env[Any], signals: Mapping[str, torch.Tensor], trace: CallTrace
) -> Iterator[tuple[str, torch.Tensor, Finding]]:
    """Yield the name of each signal that does not change, which columns, and the finding."""
    may_fail = type(env).terminated is not Env.terminated
    for name, values in signals.items():
        method, key = name.split("()")[0], name.split("'")[1]
        constant = constant_columns(values[1:])
        if method == "rewards":
            text = constant_reward(values[1:, :, 0], may_fail=may_fail)
        else:
            first = values[0, 0][constant]
            numbers = ", ".join(f"{float(number) + 0:g}" for number in first[:4])
            text = constant_observation(values[1:]) or (
                f"{numbers}{', ...' * (len(first) > 4)} in all environments and steps, so that "
                "the policy learns nothing from it; compute it from the state in each call of "
                "observe(), or leave it out"
            )
        if constant.any() and text:
            where = "" if constant.all() else columns(constant)
            place = trace.place_of(method, key, int(constant.nonzero()[0]))
            yield name, constant, Finding(f"{name}{where}: {text}", place)


def columns(chosen: torch.Tensor) -> str:
    """Return the chosen columns as text; nothing if there is only one column."""
    numbers = map(str, chosen.nonzero().flatten().tolist())
    return f" columns {', '.join(numbers)}" if len(chosen) > 1 else ""


def _range(values: torch.Tensor) -> str:
    low, high = f"{values.min():.2g}", f"{values.max():.2g}"
    return low if low == high else f"{low} to {high}"
