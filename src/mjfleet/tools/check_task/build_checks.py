"""Compares environments that were built in different ways: other numbers, seeds, constants."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import mujoco
import numpy as np

from mjfleet.config import AgentConfig
from mjfleet.env.environment import Env, EnvShard
from mjfleet.tools.check_task.call_trace import CallTrace, method_place
from mjfleet.tools.check_task.finding import Finding
from mjfleet.tools.check_task.line_watch import LineWatch
from mjfleet.tools.check_task.random_steps import random_actions
from mjfleet.tools.check_task.snapshot import differs, own_tensors, roll, rows_of

Build = Callable[..., Env[Any]]
"""Builds the environment on MuJoCo's own engine: `build(rank=0, shard=None)`."""

COMPARED_STEPS = 8
DERIVED = (
    "body_subtreemass", "body_invweight0", "dof_invweight0", "tendon_invweight0", "actuator_acc0",
)  # fmt: skip
"""Constants of a model that MuJoCo computes from masses, inertias and armatures."""
INERTIAL = ("body_mass", "body_inertia", "body_ipos", "body_iquat", "dof_armature", "qpos0")


def neighbours(
    build: Build, num_envs: int, agent: AgentConfig, trace: CallTrace, *, is_told: bool
) -> Iterator[Finding]:
    """Find that an environment differs with the number of the others, unless that `is_told`.

    All environments of an evaluation, and half of them, draw the same random numbers.
    """
    half = num_envs // 2
    whole = build(shard=EnvShard(0, num_envs, num_envs))
    part = build(shard=EnvShard(0, half, num_envs))
    mine, theirs = own_tensors(whole), own_tensors(part)
    for name, tensor in theirs.items():
        rows = rows_of(part, tensor)
        other = mine.get(name)
        if rows is None or other is None or rows_of(whole, other) != rows:
            continue
        if differs(other.narrow(rows, 0, half), tensor).any():
            yield Finding(
                f"{name} of an environment is another one when there are {half} environments "
                f"instead of {num_envs}, so that an evaluation depends on the number of workers; "
                "compute it from self.env_ids, self.uniform or self.normal",
                method_place(whole, "setup"),
                is_sure=False,
            )
            return
    actions = random_actions(whole, agent, COMPARED_STEPS, seed=8)
    with LineWatch(trace.folder, {}) as all_lines:
        one = roll(whole, actions)
    with LineWatch(trace.folder, {}) as half_lines:
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
            method, key = name.split("()")[0], name.split("'")[1] if "'" in name else ""
            yield Finding(
                f"{name} of an environment depends on the other environments: it differs when "
                f"there are {half} instead of {num_envs}; sum, average and sort within a row "
                "(dim=1), and not over worlds",
                trace.place_of(method, key) or method_place(whole, "apply"),
            )
            return


def seeds(build: Build, agent: AgentConfig, trace: CallTrace) -> Iterator[Finding]:
    """Find that the same seed gives other episodes, or another seed the same ones."""
    envs = [build(rank=rank) for rank in (0, 0, 1)]
    futures = [roll(env, random_actions(env, agent, COMPARED_STEPS, seed=9)) for env in envs]
    one, again, other = futures
    place = method_place(envs[0], "reset_worlds")
    for name in one:
        if differs(one[name], again[name]).any():
            yield Finding(
                f"{name} differs between two environments with the same seed and actions, so that "
                "a run cannot be repeated; draw with self.uniform and self.normal, and use no "
                "clock and no order of a set",
                place,
            )
            return
    if trace.draws_any and all(not differs(one[name], other[name]).any() for name in one):
        yield Finding(
            "workers with different ranks have the same environments: no random number follows "
            "from the seed; draw with self.uniform and self.normal",
            place,
        )


def stale_constants(env: Env[Any], traced: Env[Any], trace: CallTrace) -> Iterator[Finding]:
    """Find masses that were changed without `set_const`. `env` has not been stepped yet.

    Args:
        env: a new environment.
        traced: one that `trace` has followed from its construction on.
        trace: has seen who wrote what.
    """
    sim = env.sim
    if wrong := _stale_in(sim.model):
        yield Finding(
            f"make_model() changes masses of a compiled model: its {wrong} still belongs to the "
            "ones before; call mujoco.mj_setConst(model, mujoco.MjData(model)), or change a "
            "mujoco.MjSpec before it is compiled",
            method_place(env, "make_model"),
        )
        return
    written = [name for name in INERTIAL if name in sim._expanded]
    model_values = {name: getattr(sim.model, name) for name in DERIVED}
    fields = {name: sim.expand(name) for name, values in model_values.items() if values.size}
    before = {name: field.clone() for name, field in fields.items()}
    sim.set_const()
    for name, field in fields.items():
        change = (field - before[name]).abs().max()
        if written and float(change) > 1e-3 * float(before[name].abs().max()) + 1e-9:
            places = [trace.writer_of(traced.sim._expanded[field]) for field in written]
            yield Finding(
                f"{', '.join(written)} changed without sim.set_const(): {name} and other "
                "constants of the model still belong to the values before; call "
                "self.sim.set_const() in setup(), after the last change",
                next(filter(None, places), None),
            )
            return


def _stale_in(model: mujoco.MjModel) -> str | None:
    """Return a constant of a model that does not belong to its masses."""
    renewed = copy.copy(model)
    mujoco.mj_setConst(renewed, mujoco.MjData(renewed))
    for name in DERIVED:
        now, then = getattr(renewed, name), getattr(model, name)
        if now.size and np.abs(now - then).max() > 1e-3 * np.abs(then).max() + 1e-9:
            return name
    return None
