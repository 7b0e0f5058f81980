"""Steps two engines side by side, each step from the same state."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from mjfleet.config import AgentConfig
from mjfleet.env.environment import Env
from mjfleet.sim.simulation import STATE_FIELDS
from mjfleet.tools.check_task.call_trace import CallTrace
from mjfleet.tools.check_task.finding import Finding
from mjfleet.tools.check_task.random_steps import (
    columns,
    engine_warnings,
    not_finite,
    random_actions,
)
from mjfleet.tools.check_task.snapshot import Outcome, own_tensors, roll

STEPS = 100


def disagreements(
    one: Env[Any], other: Env[Any], agent: AgentConfig, trace: CallTrace, twin: CallTrace
) -> Iterator[Finding]:
    """Find where two new environments with the same seed differ, on two engines.

    Before each step, the second one is put into the state of the first one, since contacts would
    soon make their worlds diverge. For the same reason the median over worlds must agree, within a
    share of the values' spread. The engines compute in float64 and float32.
    """
    rows: list[tuple[Outcome, Outcome]] = []
    for step, action in enumerate(random_actions(one, agent, STEPS, seed=10)):
        if step:
            _put_into_state(one, other, twin)
        pair = [roll(env, action.unsqueeze(0)) for env in (one, other)]
        if not step:
            rows.append(tuple({k: v[0] for k, v in each.items()} for each in pair))  # pyright: ignore
        rows.append(tuple({k: v[1] for k, v in each.items()} for each in pair))  # pyright: ignore
    outcome = {k: torch.stack([pair[1][k] for pair in rows]).double().cpu() for k in rows[0][1]}
    states = {name: values for name, values in outcome.items() if name.startswith("sim.")}
    bad_numbers = list(not_finite(states, {})) or list(not_finite(outcome, {}))
    for finding in (*engine_warnings(other), *bad_numbers):
        yield replace(finding, text=f"{finding.text} (on warp)")
    if bad_numbers:
        return
    found: list[tuple[int, bool, str, torch.Tensor]] = []
    for name in rows[0][0]:
        if not rows[0][0][name].numel():
            continue
        others = outcome[name]
        values = torch.stack([pair[0][name] for pair in rows]).double().cpu()
        difference = (values - others).abs().median(dim=1).values
        limit = 0.05 * values.std(dim=(0, 1)) + 1e-4 * values.abs().amax(dim=(0, 1)) + 1e-6
        bad = difference > limit
        if bad.any():
            step = int(bad.any(dim=1).nonzero()[0])
            found.append((step, not name.startswith("sim."), name, difference.masked_fill(~bad, 0)))
    found.sort(key=lambda each: each[:3])
    if not any(is_signal for _, is_signal, _, _ in found):
        return
    # What follows from a state that differs is not told.
    for step, is_signal, name, difference in found if found[0][1] else found[:1]:
        bad = (difference > 0).any(dim=0)
        when = f"after {step} steps" if step else "at the start"
        method, key = name.split("()")[0], name.split("'")[1] if "'" in name else ""
        place = trace.place_of(method, key, int(bad.nonzero()[0]))
        yield Finding(
            f"{name}{columns(bad)}: differs between the engines {when}, by up to "
            f"{float(difference.max()):.2g}; draw random numbers with self.uniform and "
            "self.normal, let no number depend on a dtype or a device, and see docs/tasks.md for "
            "what each field holds when it is read",
            place if is_signal else trace.writer_of(one.sim.ctrl),
        )


def _put_into_state(one: Env[Any], other: Env[Any], twin: CallTrace) -> None:
    """Let `other` go on from the state of `one`."""
    for name in (*STATE_FIELDS, *one.sim._expanded):
        mine, theirs = (
            env.sim._expanded[name] if name in env.sim._expanded else getattr(env.sim, name)
            for env in (one, other)
        )
        theirs.copy_(mine)
    own = own_tensors(one)
    for name, tensor in own_tensors(other).items():
        if name in own and own[name].shape == tensor.shape:
            tensor.copy_(own[name])
    other.action = one.action.to(other.device)
    other.episode_length_buf.copy_(one.episode_length_buf)
    _, generator = twin.twins.get(id(other.generator), (None, other.generator))
    generator.set_state(one.generator.get_state())
    other.sim.forward()
