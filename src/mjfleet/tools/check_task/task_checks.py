"""The checks of `mjfleet check-task`, made on some steps with random actions.

Each mistake is a line that says where it is and what to do.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn.functional import pad

from mjfleet.config import AgentConfig
from mjfleet.env.environment import Env
from mjfleet.env.step_recorder import RESULTS, StepRecorder
from mjfleet.sim.simulation import STATE_FIELDS
from mjfleet.tools.check_task.sync_check import SyncCheck

STEPS = 100
COMPARED = 4  # Rows in which both engines must agree: the initial one and those of the first steps.
MAY_CHANGE = 0.25  # Share of the other worlds that may change during a reset, as by a timer.

Signals = dict[str, torch.Tensor]
"""Observation groups `(1 + STEPS, num_envs, size)`, the initial ones first, and reward terms
`(1 + STEPS, num_envs, 1)`, whose first row is zero; on the CPU, float64."""


def check(env: Env[Any], agent: AgentConfig) -> tuple[Signals, list[str]]:
    """Run a new environment with an untrained policy's actions; return signals and mistakes."""
    calls = SyncCheck(env)
    env.recorder = StepRecorder(STEPS)
    env.recorder.shown = env.num_envs
    generator = torch.Generator().manual_seed(0)
    seen, leaks = [env.get_observations()], []
    with torch.inference_mode():  # As in training.
        for step in range(STEPS):
            if step == STEPS // 2:
                leaks = list(reset_leaks(env))
            noise = torch.randn(env.num_envs, env.num_actions, generator=generator)
            actions = agent.actor.distribution.init_std * noise
            seen.append(env.step(actions.to(env.device))[0])
    signals = {
        f"observe()[{name!r}]": torch.stack([groups[name] for groups in seen]).double().cpu()
        for name in seen[0].keys()  # noqa: SIM118  # Of a TensorDict.
    }
    # A row of zeros comes first, so that a row's index is the number of its step.
    steps = {k: v.double().cpu() for k, v in env.recorder.tensors.items() if v.ndim == 3}
    steps = {name: pad(values, (0, 0, 0, 0, 1, 0)) for name, values in steps.items()}
    for name, term in zip(env.reward_names, steps["terms"].split(1, dim=2), strict=True):
        signals[f"rewards()[{name!r}]"] = term
    states = {f"sim.{f}": steps[f"end/{f}"] for f in RESULTS if f"end/{f}" in steps}
    # Bad states make everything computed from them bad: only the states are named then.
    not_finite = list(find_not_finite(states)) or list(find_not_finite(signals))
    trouble = [
        f"the engine reports {kind} in {worlds} of {env.num_envs} worlds; look at the model, and "
        "at what apply() and reset_worlds() write"
        for kind, worlds in env.sim.warnings().items()
    ]
    return signals, [
        *calls.other_dtypes(),
        *calls.waits.values(),
        *not_finite,
        *trouble,
        *constant_terms(signals, allow_alive=type(env).terminated is not Env.terminated),
        *unscaled_observations(signals, agent),
        *leaks,
    ]


def find_not_finite(signals: Mapping[str, torch.Tensor]) -> Iterator[str]:
    for name, values in signals.items():
        bad = ~values.isfinite()
        if bad.any():
            worlds = int(bad.any(dim=2).any(dim=0).sum())
            first = int(bad.any(dim=2).any(dim=1).nonzero()[0])
            yield (
                f"{name}{_columns(bad.any(dim=1).any(dim=0))}: not finite, first in step "
                f"{first}, in {worlds} of {bad.shape[1]} worlds; look for divisions by zero, "
                "roots, logarithms and bodies that overlap"
            )


def constant_terms(signals: Mapping[str, torch.Tensor], allow_alive: bool) -> Iterator[str]:
    """Find reward terms that are the same in all worlds and steps, but for those of being alive."""
    for name, values in signals.items():
        term, value = values[1:], float(values[1, 0, 0])
        is_for_being_alive = allow_alive and value > 0
        if name.startswith("rewards") and not is_for_being_alive and _is_constant(term).all():
            yield (
                f"{name}: {value + 0:g} in all worlds and steps, so that nothing is learned from "
                "it; make it follow the state, or leave it out"
            )


def unscaled_observations(signals: Mapping[str, torch.Tensor], agent: AgentConfig) -> Iterator[str]:
    """Find columns that are too large or small for networks that do not normalise them."""
    seen: dict[str, str] = {}
    for network, groups in (("actor", agent.obs_groups.actor), ("critic", agent.obs_groups.critic)):
        if not getattr(agent, network).obs_normalization:
            seen = dict.fromkeys(groups, network) | seen
    for group, network in seen.items():
        values = signals[f"observe()[{group!r}]"]
        size = values.square().mean(dim=(0, 1)).sqrt()
        large, small = (size > 10) & size.isfinite(), (size < 0.01) & ~_is_constant(values)
        for wrong, word in ((large, "large"), (small, "small")):
            if wrong.any():
                yield (
                    f"observe()[{group!r}]{_columns(wrong)}: {word}, root mean square up to "
                    f"{size[wrong].max():.2g}; scale it to about 1, or set "
                    f"agent.{network}.obs_normalization"
                )


def reset_leaks(env: Env[Any]) -> Iterator[str]:
    """Reset every second world and find what changed in the others."""
    kept = torch.arange(env.num_envs, device=env.device) % 2 == 0
    before = {name: value.clone() for name, value in _worlds(env).items()}
    env._reset(~kept)
    after = _worlds(env)
    for name, value in before.items():
        if name in after and after[name].shape == value.shape:
            now, then = after[name][kept].double(), value[kept].double()
            same = now.isclose(then, rtol=1e-4, atol=1e-6, equal_nan=True)
            if same.view(len(now), -1).all(dim=1).float().mean() < 1 - MAY_CHANGE:
                yield (
                    f"reset_worlds(mask): changes {name} where mask is false; write "
                    "torch.where(mask, new, old), with mask.unsqueeze(1) for (num_envs, size)"
                )


def _worlds(env: Env[Any]) -> dict[str, torch.Tensor]:
    """Return all tensors with a row per world: the state and the task's own."""
    state = {f"sim.{name}": getattr(env.sim, name) for name in STATE_FIELDS}
    own = {f"self.{name}": value for name, value in vars(env).items()}
    return {
        name: value
        for name, value in (state | own).items()
        if isinstance(value, torch.Tensor) and value.shape[:1] == (env.num_envs,)
    }


def disagreements(one: Signals, other: Signals) -> Iterator[str]:
    """Find where two engines differ in the first steps, with the same seed and actions.

    Contacts make single worlds diverge early, so that the median over worlds must agree, within a
    share of the values' spread. The engines compute in float64 and float32.
    """
    for name, values in one.items():
        difference = (values - other[name]).abs()[:COMPARED].median(dim=1).values
        spread = values.std(dim=(0, 1))
        limit = 0.05 * spread + 1e-4 * values.abs().amax(dim=(0, 1)) + 1e-6
        bad = difference > limit
        if bad.any():
            step = int(bad.any(dim=1).nonzero()[0])
            most = float(difference[:, bad.any(dim=0)].max())
            when = f"after {step} steps" if step else "at the start"
            yield (
                f"{name}{_columns(bad.any(dim=0))}: differs between the engines {when}, by up to "
                f"{most:.2g}; draw random numbers with self.uniform and self.normal, and see "
                "docs/tasks.md for what each field holds when it is read"
            )


def _is_constant(values: torch.Tensor) -> torch.Tensor:
    """Return a mask of the columns of `(steps, num_envs, size)` that change by rounding only."""
    low, high = values.amin(dim=(0, 1)), values.amax(dim=(0, 1))
    return high - low <= 1e-7 + 1e-6 * torch.maximum(high.abs(), low.abs())


def _columns(chosen: torch.Tensor) -> str:
    """Return the chosen columns as text; nothing if there is only one column."""
    numbers = map(str, chosen.nonzero().flatten().tolist())
    return f" columns {', '.join(numbers)}" if len(chosen) > 1 else ""
