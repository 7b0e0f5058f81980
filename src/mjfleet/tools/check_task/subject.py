"""An environment under examination, which can return to an earlier state."""

import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from traceback import FrameSummary
from typing import Any, NamedTuple

import torch
from mujoco import mjtJoint

from mjfleet.config import AgentConfig
from mjfleet.env.environment import Env
from mjfleet.env.random_numbers import random_states, restore_random_states
from mjfleet.errors import UserError
from mjfleet.sim.simulation import STATE_FIELDS

Outcome = dict[str, torch.Tensor]
"""What some steps led to: `(steps, num_envs, size)` by name, such as "sim.qpos", "terminated()" and
"rewards()['upright']". Ends of episodes by their time limit are left out."""
STATE = ("qpos", "qvel", "act", "mocap_pos", "mocap_quat")
OF_FRAMEWORK = ("action", "previous_action", "episode_length_buf")


class Finding(NamedTuple):
    """A mistake, or what may be one: where, what is wrong, why, and what to write instead."""

    text: str
    is_sure: bool = True
    is_last: bool = False  # Whether later checks would only show what follows from it.


class Subject:
    """A task's environment, and how it is trained."""

    def __init__(self, env: Env[Any], agent: AgentConfig) -> None:
        self.env, self.agent = env, agent
        self.everywhere = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        self.keep()

    def keep(self) -> None:
        """Keep the present state, to which `restore` goes back."""
        self._restores = self.env.sim.keep(), self.env.keep()
        self._host = random_states(str(self.env.device))

    def restore(self) -> None:
        """Go back to the state that was kept."""
        for restore in self._restores:
            restore()
        restore_random_states(self._host, str(self.env.device))

    def future(self, actions: torch.Tensor, change: Callable[[], object] | None = None) -> Outcome:
        """Return what the actions lead to from the state that was kept, or from a change of it."""
        self.restore()
        if change:
            change()
        return roll(self.env, actions)

    def check(self, check: Callable[..., Iterator[Finding]], *arguments: Any) -> list[Finding]:
        """Return what a check finds, and undo what it does to the environment."""
        self.keep()
        findings = list(check(self, *arguments))
        self.restore()
        return findings

    def packages(self) -> set[str]:
        """Return the names of the packages that define the environment's classes."""
        kinds = type(self.env).__mro__
        modules = (kind.__module__ for kind in kinds[: kinds.index(Env)])
        return {module.partition(".")[0] for module in modules} - {"mjfleet"}

    def actions(self, steps: int, seed: int = 0) -> torch.Tensor:
        """Return what an untrained policy would do, `(steps, num_envs, number of actions)`."""
        env, generator = self.env, torch.Generator().manual_seed(seed)
        noise = torch.randn(steps, env.num_envs, env.num_actions, generator=generator)
        return (self.agent.actor.distribution.init_std * noise).to(env.device)

    def state(self) -> dict[str, torch.Tensor]:
        """Return copies of all state: the simulation's, fields of `expand`, what is declared."""
        sim, states = self.env.sim, self.env._states.of_envs.items()
        found = {f"sim.{name}": getattr(sim, name) for name in STATE_FIELDS}
        found |= {f"sim.expand({name!r})": field for name, field in sim.expanded.items()}
        found |= {f"self.{k}": v for k, v in states if k[0] != "_" and k not in OF_FRAMEWORK}
        return {name: tensor.clone() for name, tensor in found.items()}

    def write_random_states(self, generator: torch.Generator, worlds: slice = slice(None)) -> None:
        """Write positions within the joints' ranges, any orientation, and slow or fast speeds."""
        sim, model, count = self.env.sim, self.env.sim.model, self.env.num_envs

        def uniform(size: int, low: float, high: float) -> torch.Tensor:
            return torch.rand(count, size, generator=generator) * (high - low) + low

        for joint in range(model.njnt):
            at, kind = int(model.jnt_qposadr[joint]), mjtJoint(model.jnt_type[joint])
            low, high = (float(end) for end in model.jnt_range[joint])
            if not model.jnt_limited[joint]:
                high = 4 * math.pi if kind == mjtJoint.mjJNT_HINGE else float(model.stat.extent)
                low = -high
            sizes = {mjtJoint.mjJNT_FREE: (3, 4), mjtJoint.mjJNT_BALL: (4,)}.get(kind, (1,))
            value = torch.cat([uniform(width, low, high) for width in sizes], dim=1)
            if kind == mjtJoint.mjJNT_FREE:
                value[:, :3] += sim.qpos[:, at : at + 3].cpu()
            if value.shape[1] > 1:
                value[:, -4:] = torch.nn.functional.normalize(value[:, -4:], dim=1)
            sim.qpos[worlds, at : at + value.shape[1]] = value.to(sim.qpos)[worlds]
        speed = 10.0 ** uniform(1, -1.0, 1.0) * torch.randn(count, model.nv, generator=generator)
        sim.qvel[worlds] = speed.to(sim.qvel)[worlds]
        sim.forward()

    def from_random_states(self, rounds: int, is_late: bool = False) -> Outcome:
        """Step once from each of `rounds` random states. Late states are by turns in an episode's
        last step, and at high speeds with large numbers in declared state."""
        generator = torch.Generator().manual_seed(3)

        def change(number: int) -> None:
            self.write_random_states(generator)
            if is_late and number % 2 == 0:
                self.env.episode_length_buf.fill_(self.env.max_episode_length - 1)
            elif is_late:
                numbers = self.env.sim.qvel, *self.env._states.of_envs.values()
                for tensor in filter(torch.is_floating_point, numbers):
                    tensor.add_(1e3 * torch.rand_like(tensor))

        actions = enumerate(self.actions(rounds, seed=4).unsqueeze(1))
        outcomes = [self.future(action, partial(change, number)) for number, action in actions]
        self.restore()
        return {name: torch.cat([o[name][1:] for o in outcomes]) for name in outcomes[0]}


def roll(env: Env[Any], actions: torch.Tensor) -> Outcome:
    """Take the steps of `actions` `(steps, num_envs, number of actions)`.

    The first row of what is returned is the present state, before any step. Observations are those
    after resets, states those before.

    Raises:
        UserError: an observation is missing, or has another size than at first.
    """

    def kept(value: torch.Tensor) -> torch.Tensor:
        return value.reshape(env.num_envs, -1).to("cpu", torch.float64, copy=True)

    def state() -> Outcome:
        found = {f"sim.{name}": kept(getattr(env.sim, name)) for name in (*STATE, "ctrl")}
        return {"truncated()": kept(env.truncated())} | found

    def row(state: Outcome, failed: torch.Tensor) -> Outcome:
        # Causes come before effects.
        terms = zip(env.reward_names, env.terms, strict=True)
        found = {"terminated()": kept(failed)} | state
        found |= {f"rewards()[{name!r}]": kept(term) for name, term in terms}
        groups: Any = env.get_observations().items()
        return found | {f"observe()[{name!r}]": kept(group) for name, group in groups}

    states = [state()]
    rows = [row(states[0], torch.zeros_like(env.episode_length_buf))]
    env.before_reset = lambda _: states.append(state())
    for action in actions:
        _, _, dones, extras = env.step(action.to(env.device))
        rows.append(row(states[-1], dones & ~extras["time_outs"]))
    del env.before_reset
    for name, first in rows[0].items():
        if any(name not in row or row[name].shape != first.shape for row in rows):
            raise UserError(f"{type(env).__name__}.{name} changes its size; it must stay the same.")
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def place(frame: FrameSummary) -> str:
    """Return a line of code with its place."""
    return f"{os.path.relpath(frame.filename)}:{frame.lineno}, in {frame.name}(): `{frame.line}`"


def columns(chosen: torch.Tensor) -> str:
    """Return the first ten of the chosen columns as text; nothing if there is only one column."""
    numbers = [str(number) for number in chosen.nonzero().flatten().tolist()]
    listed = ", ".join(numbers[:10]) + ", ..." * (len(numbers) > 10)
    return f" columns {listed}" if len(chosen) > 1 else ""


def differs(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return where two values differ by more than rounding, as a mask of their shape."""
    one, other = one.double(), other.double()
    if torch.equal(one, other):  # Mostly, and in a tenth of the time.
        return torch.zeros_like(one, dtype=torch.bool)
    return ~one.isclose(other, rtol=1e-5, atol=1e-7, equal_nan=True)


def all_equal(values: torch.Tensor) -> bool:
    """Return whether all environments have the same values `(num_envs, ...)`."""
    return not bool(differs(values, values[:1].expand_as(values)).any())
