"""Compares environments that were built in different ways: numbers, seeds, constants, engines."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import mujoco
import numpy as np
import torch

from mjfleet.env.environment import Env, EnvShard
from mjfleet.errors import UserError
from mjfleet.rl.adapters.rsl_rl_adapter import augmentation
from mjfleet.rl.equivariance import read_mirrors
from mjfleet.sim.simulation import STATE_FIELDS
from mjfleet.tools.check_task.finding import Finding, columns
from mjfleet.tools.check_task.line_watch import LineWatch
from mjfleet.tools.check_task.random_steps import engine_warnings, not_finite
from mjfleet.tools.check_task.subject import (
    Outcome,
    Subject,
    differs,
    joined,
    own_tensors,
    roll,
    rows_of,
)

Build = Callable[..., Env[Any]]
"""Builds the environment on MuJoCo's own engine: `build(rank=0, shard=None)`."""

COMPARED_STEPS = 8
ENGINE_STEPS = 100
DERIVED = (
    "body_subtreemass", "body_invweight0", "dof_invweight0", "tendon_invweight0", "actuator_acc0",
)  # fmt: skip
"""Constants of a model that MuJoCo computes from masses, inertias and armatures."""
INERTIAL = ("body_mass", "body_inertia", "body_ipos", "body_iquat", "dof_armature", "qpos0")


def neighbours(subject: Subject, build: Build, is_told: bool) -> Iterator[Finding]:
    """Find that an environment differs with the number of the others, unless that `is_told`.

    All environments of an evaluation, and half of them, draw the same random numbers.
    """
    total = subject.env.num_envs
    half = total // 2
    whole, part = build(shard=EnvShard(0, total, total)), build(shard=EnvShard(0, half, total))
    mine, theirs = own_tensors(whole), own_tensors(part)
    for name, tensor in theirs.items():
        rows = rows_of(part, tensor)
        other = mine.get(name)
        if rows is None or other is None or rows_of(whole, other) != rows:
            continue
        if differs(other.narrow(rows, 0, half), tensor).any():
            yield Finding(
                f"{name} of an environment is another one when there are {half} environments "
                f"instead of {total}, so that an evaluation depends on the number of workers; "
                "compute it from self.env_ids, self.uniform or self.normal",
                subject.method_place("setup"),
                is_sure=False,
            )
            return
    actions = subject.actions(COMPARED_STEPS, seed=8)
    with LineWatch(subject.trace.folder, {}) as all_lines:
        one = roll(whole, actions)
    with LineWatch(subject.trace.folder, {}) as half_lines:
        other = roll(part, actions[:, :half])
    looped = [line for line, count in all_lines.counts.items()
              if count == 2 * half_lines.counts[line] >= COMPARED_STEPS * half]  # fmt: skip
    if looped:
        yield Finding(
            "runs once for each world: Python takes microseconds for each of thousands; compute "
            "all worlds at once, as rows of tensors",
            looped[0],
        )
    for name, value in one.items():
        mine, others = value[:, :half], other[name]
        close = mine.double().isclose(others.double(), rtol=1e-3, atol=1e-5, equal_nan=True)
        if not bool(close.all()) and not is_told:
            yield Finding(
                f"{name} of an environment depends on the other environments: it differs when "
                f"there are {half} instead of {total}; sum, average and sort within a row "
                "(dim=1), and not over worlds",
                subject.place_of(name),
            )
            return


def seeds(subject: Subject, build: Build) -> Iterator[Finding]:
    """Find that the same seed gives other episodes, or another seed the same ones."""
    actions = subject.actions(COMPARED_STEPS, seed=9)
    one, again, other = (roll(build(rank=rank), actions) for rank in (0, 0, 1))
    place = subject.method_place("reset_worlds")
    for name in one:
        if differs(one[name], again[name]).any():
            yield Finding(
                f"{name} differs between two environments with the same seed and actions, so that "
                "a run cannot be repeated; draw with self.uniform and self.normal, and use no "
                "clock and no order of a set",
                place,
            )
            return
    if subject.trace.draws_any and all(not differs(one[name], other[name]).any() for name in one):
        yield Finding(
            "workers with different ranks have the same environments: no random number follows "
            "from the seed; draw with self.uniform and self.normal",
            place,
        )


def symmetry(subject: Subject, load: Callable[..., Any]) -> Iterator[Finding]:
    """Find why training would refuse the function that mirrors samples; for `load` see Runner."""
    env, algorithm = subject.env, subject.agent.algorithm
    try:
        mirror = augmentation(algorithm.symmetry_cfg, load)
        observations, actions = env.get_observations(), torch.zeros_like(env.action)
        if algorithm.ties_weights:
            sizes = {name: rows.shape[1] for name, rows in observations.items()}
            read_mirrors(partial(mirror, env), sizes, env.num_actions, actions.device)
        elif algorithm.mirrors_samples:
            mirror(env=env, obs=observations, actions=actions)
    except UserError as error:
        yield Finding(str(error))


def stale_constants(subject: Subject, build: Build) -> Iterator[Finding]:
    """Find masses that were changed without `set_const`."""
    sim = build().sim
    renewed = copy.copy(sim.model)
    mujoco.mj_setConst(renewed, mujoco.MjData(renewed))
    for name in DERIVED:
        if _has_changed(getattr(sim.model, name), getattr(renewed, name)):
            yield Finding(
                f"make_model() changes masses of a compiled model: its {name} still belongs to the "
                "ones before; call mujoco.mj_setConst(model, mujoco.MjData(model)), or change a "
                "mujoco.MjSpec before it is compiled",
                subject.method_place("make_model"),
            )
            return
    written = [name for name in INERTIAL if name in sim._expanded]
    fields = {name: sim.expand(name) for name in DERIVED if getattr(sim.model, name).size}
    before = {name: field.clone().cpu().numpy() for name, field in fields.items()}
    sim.set_const()
    for name, field in fields.items():
        if written and _has_changed(before[name], field.cpu().numpy()):
            seen = subject.env.sim._expanded
            places = [subject.trace.writer_of(seen[changed]) for changed in written]
            yield Finding(
                f"{', '.join(written)} changed without sim.set_const(): {name} and other "
                "constants of the model still belong to the values before; call "
                "self.sim.set_const() in setup(), after the last change",
                next(filter(None, places), None),
            )
            return


def _has_changed(before: np.ndarray, after: np.ndarray) -> bool:
    """Return whether constants differ by more than rounding."""
    if not before.size:
        return False
    return bool(np.abs(after - before).max() > 1e-3 * np.abs(before).max() + 1e-9)


def disagreements(one: Subject, other: Subject) -> Iterator[Finding]:
    """Find where two new environments with the same seed differ, on two engines.

    Before each step, the second one is put into the state of the first one, since contacts would
    soon make their worlds diverge. For the same reason the median over worlds must agree, within a
    share of the values' spread. The engines compute in float64 and float32.
    """
    mine, theirs = list[Outcome](), list[Outcome]()
    for step, action in enumerate(one.actions(ENGINE_STEPS, seed=10)):
        if step:
            _put_into_state(one, other)
        mine.append(roll(one.env, action.unsqueeze(0)))
        theirs.append(roll(other.env, action.unsqueeze(0)))
    expected, outcome = joined(mine), joined(theirs)
    bad_numbers = not_finite(outcome, {})
    for finding in (*engine_warnings(other.env), *bad_numbers):
        yield replace(finding, text=f"{finding.text} (on warp)")
    if bad_numbers:
        return
    found: list[tuple[int, bool, str, torch.Tensor]] = []
    for name, values in expected.items():
        if not values.numel():
            continue
        difference = (values - outcome[name]).abs().median(dim=1).values
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
        place = one.place_of(name, int(bad.nonzero()[0]))
        yield Finding(
            f"{name}{columns(bad)}: differs between the engines {when}, by up to "
            f"{float(difference.max()):.2g}; draw random numbers with self.uniform and "
            "self.normal, let no number depend on a dtype or a device, and see docs/tasks.md for "
            "what each field holds when it is read",
            place if is_signal else one.trace.writer_of(one.env.sim.ctrl),
        )


def _put_into_state(one: Subject, other: Subject) -> None:
    """Let `other` go on from the state of `one`."""
    env, target = one.env, other.env
    for name in (*STATE_FIELDS, *env.sim._expanded):
        mine, theirs = (
            sim._expanded[name] if name in sim._expanded else getattr(sim, name)
            for sim in (env.sim, target.sim)
        )
        theirs.copy_(mine)
    own = own_tensors(env)
    for name, tensor in own_tensors(target).items():
        if name in own and own[name].shape == tensor.shape:
            tensor.copy_(own[name])
    target.action = env.action.to(target.device)
    target.episode_length_buf.copy_(env.episode_length_buf)
    _, generator = other.trace.twins.get(id(target.generator), (None, target.generator))
    generator.set_state(env.generator.get_state())
    target.sim.forward()
