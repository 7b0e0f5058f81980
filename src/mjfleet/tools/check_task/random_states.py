"""Puts environments into random states, which random actions may never lead to."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from mujoco import mjtJoint

from mjfleet.config import AgentConfig
from mjfleet.env.environment import Env
from mjfleet.tools.check_task.call_trace import CallTrace
from mjfleet.tools.check_task.finding import Finding, Place
from mjfleet.tools.check_task.random_steps import Signals, columns, random_actions
from mjfleet.tools.check_task.snapshot import Snapshot, roll

ROUNDS = 20  # Of random states in all worlds.


@dataclass
class RandomStates:
    """What one step led to, from each of many random states."""

    signals: Signals  # As those of random steps, `(ROUNDS, num_envs, size)`.
    failures: torch.Tensor  # Where the task has failed, `(ROUNDS, num_envs)`.
    births: dict[str, Place | None]  # Where a signal that is not finite came from.


def step_from_random_states(env: Env[Any], agent: AgentConfig, trace: CallTrace) -> RandomStates:
    """Step once from each of many random states."""
    before, generator = Snapshot(env), torch.Generator().manual_seed(3)
    rows, failures = list[Signals](), list[torch.Tensor]()
    births = dict[str, Place | None]()
    for action in random_actions(env, agent, ROUNDS, seed=4):
        before.restore()
        write_random_states(env, generator)
        env.sim.forward()
        row = roll(env, action.unsqueeze(0))
        rows.append({name: values[1].double().cpu() for name, values in row.items()})
        failures.append(row["terminated()"][1].flatten().cpu())
        births = trace.births() | births
    before.restore()
    stacked = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return RandomStates(stacked, torch.stack(failures), births)


def rare_numbers(states: RandomStates) -> Iterator[Finding]:
    """Find observations and rewards that are not finite in states which are seldom reached."""
    for name, values in states.signals.items():
        bad = ~values.isfinite()
        if not bad.any() or name not in states.births:
            continue
        share = float(bad.any(dim=2).double().mean())
        yield Finding(
            f"{name}{columns(bad.any(dim=0).any(dim=0))}: not finite in {share:.1%} of random "
            "states, which a policy may reach, and which would end its training; limit the "
            "argument of a root, logarithm, acos or division, as in x.clamp(min=1e-6)",
            states.births[name],
            is_sure=False,
        )


def write_random_states(
    env: Env[Any], generator: torch.Generator, worlds: slice = slice(None)
) -> None:
    """Write positions within the joints' ranges, any orientation, and slow or fast speeds."""
    sim, model, count = env.sim, env.sim.model, env.num_envs

    def uniform(size: int, low: float, high: float) -> torch.Tensor:
        return torch.rand(count, size, generator=generator) * (high - low) + low

    size = float(model.stat.extent)
    for joint in range(model.njnt):
        at, kind = int(model.jnt_qposadr[joint]), mjtJoint(model.jnt_type[joint])
        low, high = (float(end) for end in model.jnt_range[joint])
        if not model.jnt_limited[joint]:
            low, high = (
                (-4 * math.pi, 4 * math.pi) if kind == mjtJoint.mjJNT_HINGE else (-size, size)
            )
        if kind == mjtJoint.mjJNT_FREE:
            value = torch.cat((uniform(3, -size, size), _quaternion(count, generator)), dim=1)
            value[:, :3] += sim.qpos[:, at : at + 3].cpu()
        elif kind == mjtJoint.mjJNT_BALL:
            value = _quaternion(count, generator)
        else:
            value = uniform(1, low, high)
        sim.qpos[worlds, at : at + value.shape[1]] = value.to(sim.qpos)[worlds]
    speed = 10.0 ** uniform(1, -1.0, 1.0) * torch.randn(count, model.nv, generator=generator)
    sim.qvel[worlds] = speed.to(sim.qvel)[worlds]


def upside_down(env: Env[Any]) -> bool:
    """Return whether a floating body's z axis points down in all environments."""
    model = env.sim.model
    floating = model.jnt_qposadr[model.jnt_type == int(mjtJoint.mjJNT_FREE)]
    tilts = [env.sim.qpos[:, int(at) + 4 : int(at) + 6].square().sum(dim=1) for at in floating]
    return any(bool((tilt > 0.5).all()) for tilt in tilts)


def _quaternion(count: int, generator: torch.Generator) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(count, 4, generator=generator), dim=1)
