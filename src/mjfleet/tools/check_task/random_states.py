"""Puts environments into random states, which random actions may never lead to."""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from mujoco import mjtJoint

from mjfleet.env.environment import Env
from mjfleet.sim.simulation import ACCELERATION_FIELDS
from mjfleet.tools.check_task.finding import Finding, columns
from mjfleet.tools.check_task.subject import (
    Births,
    Outcome,
    Subject,
    differs,
    first_difference,
    own_copies,
    own_tensors,
    roll,
)

ROUNDS = 20  # Of random states in all worlds.
LEAK_ROUNDS = 10
LATE_ROUNDS = 6
FORCES = (*ACCELERATION_FIELDS, "sensordata")  # `forward` leaves them as the physics made them.
LATE = 0.25  # Share of worlds that must follow a state one step late before anything is said.


def write_random_states(
    env: Env[Any], generator: torch.Generator, worlds: slice = slice(None)
) -> None:
    """Write positions within the joints' ranges, any orientation, and slow or fast speeds."""
    sim, model, count = env.sim, env.sim.model, env.num_envs

    def uniform(size: int, low: float, high: float) -> torch.Tensor:
        return torch.rand(count, size, generator=generator) * (high - low) + low

    def quaternion() -> torch.Tensor:
        return torch.nn.functional.normalize(torch.randn(count, 4, generator=generator), dim=1)

    size = float(model.stat.extent)
    for joint in range(model.njnt):
        at, kind = int(model.jnt_qposadr[joint]), mjtJoint(model.jnt_type[joint])
        low, high = (float(end) for end in model.jnt_range[joint])
        if not model.jnt_limited[joint]:
            high = 4 * math.pi if kind == mjtJoint.mjJNT_HINGE else size
            low = -high
        if kind == mjtJoint.mjJNT_FREE:
            value = torch.cat((uniform(3, -size, size), quaternion()), dim=1)
            value[:, :3] += sim.qpos[:, at : at + 3].cpu()
        elif kind == mjtJoint.mjJNT_BALL:
            value = quaternion()
        else:
            value = uniform(1, low, high)
        sim.qpos[worlds, at : at + value.shape[1]] = value.to(sim.qpos)[worlds]
    speed = 10.0 ** uniform(1, -1.0, 1.0) * torch.randn(count, model.nv, generator=generator)
    sim.qvel[worlds] = speed.to(sim.qvel)[worlds]


def step_from_random_states(subject: Subject) -> tuple[Outcome, Births]:
    """Step once from each of ROUNDS random states."""
    generator = torch.Generator().manual_seed(3)

    def before_step() -> None:
        subject.restore()
        write_random_states(subject.env, generator)
        subject.env.sim.forward()

    seen = subject.steps(subject.actions(ROUNDS, seed=4), before_step)
    subject.restore()
    return seen


def rare_numbers(states: Outcome, births: Births) -> Iterator[Finding]:
    """Find observations and rewards that are not finite in states which are seldom reached."""
    for name, place in births.items():
        bad = ~states[name][1:].isfinite()
        share = float(bad.any(dim=2).double().mean())
        yield Finding(
            f"{name}{columns(bad.any(dim=0).any(dim=0))}: not finite in {share:.1%} of random "
            "states, which a policy may reach, and which would end its training; limit the "
            "argument of a root, logarithm, acos or division, as in x.clamp(min=1e-6)",
            place,
            is_sure=False,
        )


def leaks_between_worlds(subject: Subject) -> Iterator[Finding]:
    """Find what changes in one half of the worlds if only the other half has another state.

    In every second round, these others time out too.
    """
    env, generator = subject.env, torch.Generator().manual_seed(13)
    half = env.num_envs // 2
    for number in range(LEAK_ROUNDS):
        futures: list[Outcome] = []
        for changes in (False, True):
            subject.restore()
            if changes:
                write_random_states(env, generator, slice(half))
                if number % 2:
                    env.episode_length_buf[:half] = env.max_episode_length - 1
            env.sim.forward()
            futures.append(roll(env, subject.actions(2, seed=14 + number)))
        one, other = futures
        if name := first_difference(one, other, slice(half, None)):
            yield Finding(
                f"{name} of an environment depends on the other environments: it differs when "
                "only these are in another state; sum, average, sort and ask any() or all() "
                "within a row (dim=1), and not over worlds",
                subject.place_of(name),
            )
            return


def late_signals(subject: Subject) -> Iterator[Finding]:
    """Find rewards and failures that follow from the state before the step, not after it.

    After the physics of a step, the state becomes a random one, and so does what `apply` has kept,
    since a term may be about the action alone.
    """
    env, generator = subject.env, torch.Generator().manual_seed(15)
    before = own_copies(env)
    env.apply(subject.actions(1, seed=29)[0])
    now = own_copies(env)
    of_apply = [name for name in now if name in before and not torch.equal(now[name], before[name])]
    physics = env.sim.step

    def step(is_disturbed: bool, n: int = 1) -> None:
        """Take the place of the simulation's method once."""
        object.__delattr__(env.sim, "step")
        physics(n)
        if is_disturbed:
            write_random_states(env, generator)
        env.sim.forward()
        if is_disturbed:
            own, fields = own_tensors(env), vars(env.sim)
            forces = [fields[name] for name in FORCES if name in fields]
            kept = [own[name] for name in of_apply if own[name].is_floating_point()]
            for tensor in (env.sim.ctrl, env.action, *forces, *kept):
                tensor.add_(1.0)

    pairs: list[tuple[Outcome, Outcome]] = []
    for number in range(LATE_ROUNDS):
        futures: list[Outcome] = []
        for is_disturbed in (False, True):
            subject.restore()
            object.__setattr__(env.sim, "step", partial(step, is_disturbed))
            futures.append(roll(env, subject.actions(2, seed=30 + number)))
        pairs.append((futures[0], futures[1]))
    ended = [one["terminated()"][1] | other["terminated()"][1] for one, other in pairs]
    goes_on = ~torch.stack(ended).squeeze(2)
    for name in pairs[0][0]:
        changes = torch.stack([differs(one[name], other[name])[1:] for one, other in pairs])
        now, later = changes.any(dim=3).unbind(dim=1)
        is_late = not now.any() and (later & goes_on).sum() > LATE * goes_on.sum() > 0
        if is_late and name.startswith(("rewards()", "terminated()")):
            yield Finding(
                f"{name} follows from the state before the step, so that an action is paid for "
                "what the one before it has done; compute it from self.sim in rewards(), which is "
                "called after the physics, and not from what observe() or an earlier call has kept",
                subject.place_of(name),
            )
