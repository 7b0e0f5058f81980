"""Compares environments that were built in different ways: numbers, seeds, constants, engines."""

import copy
from collections.abc import Callable, Iterator
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
from mjfleet.tools.check_task.finding import Finding, columns, differs
from mjfleet.tools.check_task.signals import engine_warnings, not_finite
from mjfleet.tools.check_task.subject import Outcome, Subject, first_difference, roll

Build = Callable[..., Env[Any]]
"""Builds the environment on MuJoCo's own engine: `build(rank=0, shard=None)`."""
COMPARED_STEPS = 8
ENGINE_STEPS = 100
LEAK_ROUNDS = 10
DERIVED = (
    "body_subtreemass", "body_invweight0", "dof_invweight0", "tendon_invweight0", "actuator_acc0",
)  # fmt: skip
"""Constants of a model that MuJoCo computes from masses, inertias and armatures."""
INERTIAL = ("body_mass", "body_inertia", "body_ipos", "body_iquat", "dof_armature", "qpos0")
LOOKS = ("mat_", "tex_", "light_", "cam_", "skin_")


def seeds(subject: Subject, build: Build) -> Iterator[Finding]:
    """Find that equal seeds give other environments, or other ranks the same ones."""
    actions = subject.actions(COMPARED_STEPS, seed=9)
    one, again, other = (roll(build(rank=rank), actions) for rank in (0, 0, 1))
    for name in one:
        if differs(one[name], again[name]).any():
            yield Finding(
                f"{name} differs between two environments with the same seed and actions, so that "
                "a run cannot be repeated; draw with self.uniform and self.normal, and use no "
                "clock and no order of a set"
            )
            return
    start = one["sim.qpos"][0]
    is_drawn = bool(differs(start, start[:1].expand_as(start)).any())
    if is_drawn and all(not differs(one[name], other[name]).any() for name in one):
        yield Finding(
            "workers with different ranks have the same environments: no random number follows "
            "from the seed; draw with self.uniform and self.normal"
        )


def leaks_between(subject: Subject) -> Iterator[Finding]:
    """Find what changes in one half of the environments if only the other half has another state.

    In every second round, these others time out too.
    """
    env, generator = subject.env, torch.Generator().manual_seed(13)
    half = env.num_envs // 2
    for number in range(LEAK_ROUNDS):
        futures: list[Outcome] = []
        for changes in (False, True):
            subject.restore()
            if changes:
                subject.write_random_states(generator, slice(half))
                if number % 2:
                    env.episode_length_buf[:half] = env.max_episode_length - 1
            env.sim.forward()
            futures.append(roll(env, subject.actions(2, seed=14 + number)))
        one, other = futures
        if name := first_difference(one, other, slice(half, None)):
            yield Finding(
                f"{name} of an environment depends on the other environments: it differs when only "
                "these are in another state; sum, average, sort and ask any() or all() within a "
                "row (dim=1), and not over environments"
            )
            return


def neighbours(subject: Subject, build: Build) -> Iterator[Finding]:
    """Find that an environment differs with the number of the others.

    All environments of an evaluation, and half of them, draw the same random numbers.
    """
    total = subject.env.num_envs
    half = total // 2
    whole, part = build(shard=EnvShard(0, total, total)), build(shard=EnvShard(0, half, total))
    actions = subject.actions(COMPARED_STEPS, seed=8)
    one, other = roll(whole, actions), roll(part, actions[:, :half])
    for name, value in one.items():
        close = value[:, :half].isclose(other[name], rtol=1e-3, atol=1e-5, equal_nan=True)
        if not bool(close.all()):
            yield Finding(
                f"{name} of an environment is another one when there are {half} environments "
                f"instead of {total}, so that an evaluation depends on the number of workers; "
                "compute it from self.env_ids, self.uniform or self.normal",
                is_sure=False,
            )
            return


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


def changed_model(subject: Subject) -> Iterator[Finding]:
    """Find that `setup` writes to the model, or that `make_model` returns another each time."""
    env = subject.env
    model = type(env).make_model(env.cfg)
    written = _differences(model, env.sim.model)
    if varied := written and _differences(model, type(env).make_model(env.cfg)):
        yield Finding(
            f"make_model() returns another model in each call: {', '.join(varied)} differ, so that "
            "workers, evaluations and resumed runs train on different robots; let every number "
            "follow from cfg, seeds too"
        )
    elif written:
        yield Finding(
            f"setup() changes sim.model.{', '.join(written)}, which the engine may have read "
            "already: MuJoCo-Warp has, and MuJoCo's own engine has computed no constants from it; "
            f'write self.sim.expand("{written[0]}")[:] = ..., or change it in make_model()'
        )


def _differences(one: mujoco.MjModel, other: mujoco.MjModel) -> list[str]:
    """Return the names of arrays of numbers that differ, except for colours and the like."""
    names = [name for name in dir(one) if isinstance(getattr(one, name, None), np.ndarray)]
    names = [name for name in names if not name.startswith(LOOKS) and "rgba" not in name]
    pairs = ((name, getattr(one, name), getattr(other, name)) for name in names)
    return [name for name, ours, theirs in pairs if not np.array_equal(ours, theirs, True)]


def stale_constants(build: Build) -> Iterator[Finding]:
    """Find masses that were changed without `set_const`."""
    sim = build().sim
    renewed = copy.copy(sim.model)
    mujoco.mj_setConst(renewed, mujoco.MjData(renewed))
    for name in DERIVED:
        if _has_changed(getattr(sim.model, name), getattr(renewed, name)):
            yield Finding(
                f"make_model() changes masses of a compiled model: its {name} still belongs to the "
                "ones before; call mujoco.mj_setConst(model, mujoco.MjData(model)), or change a "
                "mujoco.MjSpec before it is compiled"
            )
            return
    written = [name for name in INERTIAL if name in sim.expanded]
    fields = {name: sim.expand(name) for name in DERIVED if getattr(sim.model, name).size}
    before = {name: field.clone().cpu().numpy() for name, field in fields.items()}
    sim.set_const()
    for name, field in fields.items():
        if written and _has_changed(before[name], field.cpu().numpy()):
            yield Finding(
                f"setup(): {', '.join(written)} changed without sim.set_const(): {name} and other "
                "constants of the model still belong to the values before; call "
                "self.sim.set_const() after the last change"
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
    soon make them diverge. For the same reason the median over environments must agree, within a
    share of the values' spread. The engines compute in float64 and float32.
    """
    mine, theirs = list[Outcome](), list[Outcome]()
    for step, action in enumerate(one.actions(ENGINE_STEPS, seed=10)):
        if step:
            _put_into_state(one.env, other.env)
        mine.append(roll(one.env, action.unsqueeze(0)))
        theirs.append(roll(other.env, action.unsqueeze(0)))
    expected, outcome = _joined(mine), _joined(theirs)
    bad_numbers = not_finite(outcome)
    for finding in (*engine_warnings(other.env), *bad_numbers):
        yield Finding(f"{finding.text} (on warp)")
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
    for step, _, name, difference in found if found[0][1] else found[:1]:
        when = f"after {step} steps" if step else "at the start"
        yield Finding(
            f"{name}{columns((difference > 0).any(dim=0))}: differs between the engines {when}, by "
            f"up to {float(difference.max()):.2g}; draw random numbers with self.uniform and "
            "self.normal, let no number depend on a dtype or a device, and see docs/tasks.md for "
            "what each field holds when it is read"
        )


def _joined(outcomes: list[Outcome]) -> Outcome:
    """Return outcomes of single steps as one."""
    first = outcomes[0]
    return {
        name: torch.cat((values[:1], *(each[name][1:] for each in outcomes)))
        for name, values in first.items()
    }


def _put_into_state(env: Env[Any], target: Env[Any]) -> None:
    """Let `target` continue from the state of `env`, on another engine."""
    for name in STATE_FIELDS:
        getattr(target.sim, name).copy_(getattr(env.sim, name))
    for name, field in env.sim.expanded.items():
        target.sim.expanded[name].copy_(field)
    declared = target._states.of_envs
    for name, tensor in env._states.of_envs.items():
        declared[name].copy_(tensor)
    target.generator.set_state(env.generator.get_state())
    target.sim.forward()
