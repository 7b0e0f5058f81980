"""An environment under examination: it acts, and goes back to an earlier state.

Two futures can thus be compared that begin in the same state.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from mujoco import mjtJoint

from mjfleet.config import AgentConfig
from mjfleet.env.environment import Env
from mjfleet.env.random_numbers import random_states, restore_random_states
from mjfleet.sim.simulation import STATE_FIELDS
from mjfleet.tools.check_task.finding import Finding, differs

Outcome = dict[str, torch.Tensor]
"""What some steps led to: `(steps, num_envs, size)` by name, such as "sim.qpos", "terminated()" and
"rewards()['upright']". Ends of episodes are failures alone, without time-outs."""
STATE = ("qpos", "qvel", "act", "mocap_pos", "mocap_quat")
OF_FRAMEWORK = ("action", "previous_action", "episode_length_buf")


class Subject:
    """A task's environment, and how it is trained."""

    def __init__(self, env: Env[Any], agent: AgentConfig) -> None:
        """Examine `env`; its state of now is that to which checks go back."""
        self.env, self.agent = env, agent
        self.everywhere = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        self.keep()

    def keep(self) -> None:
        """Let the state of now be that to which `restore` goes back."""
        env = self.env
        self._fields = {name: field.clone() for name, field in env.sim.state().items()}
        self._state, self._host = env.state_dict(), random_states(str(env.device))

    def restore(self) -> None:
        """Go back to the state that was kept."""
        self.env.sim.restore(self._fields)
        self.env.load_state_dict(self._state)
        restore_random_states(self._host, str(self.env.device))

    def check(self, check: Callable[..., Iterator[Finding]], *arguments: Any) -> list[Finding]:
        """Return what a check finds, which may do anything to the environment meanwhile."""
        self.keep()
        findings = list(check(self, *arguments))
        self.restore()
        return findings

    def overrides(self, method: str) -> bool:
        """Return whether the task has written a method itself."""
        return getattr(type(self.env), method) is not getattr(Env, method, None)

    def actions(self, steps: int, seed: int = 0) -> torch.Tensor:
        """Return what an untrained policy would do, `(steps, num_envs, number of actions)`."""
        env, generator = self.env, torch.Generator().manual_seed(seed)
        noise = torch.randn(steps, env.num_envs, env.num_actions, generator=generator)
        return (self.agent.actor.distribution.init_std * noise).to(env.device)

    def declared(self) -> dict[str, torch.Tensor]:
        """Return copies of the state that the task has declared, by name."""
        found = self.env._states.of_envs.items()
        own = {name: tensor for name, tensor in found if not name.startswith("_")}
        return {f"self.{n}": t.clone() for n, t in own.items() if n not in OF_FRAMEWORK}

    def state(self) -> dict[str, torch.Tensor]:
        """Return copies of all state: the simulation's, fields of `expand`, what is declared."""
        sim = self.env.sim
        of_sim = {f"sim.{name}": getattr(sim, name).clone() for name in STATE_FIELDS}
        expanded = {f"sim.expand({n!r})": field.clone() for n, field in sim.expanded.items()}
        return of_sim | expanded | self.declared()

    def write_random_states(self, generator: torch.Generator, worlds: slice = slice(None)) -> None:
        """Write positions within the joints' ranges, any orientation, and slow or fast speeds."""
        sim, model, count = self.env.sim, self.env.sim.model, self.env.num_envs

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
        sim.forward()

    def from_random_states(self, rounds: int) -> Outcome:
        """Step once from each of so many random states."""
        generator, outcomes = torch.Generator().manual_seed(3), list[Outcome]()
        for action in self.actions(rounds, seed=4):
            self.restore()
            self.write_random_states(generator)
            outcomes.append(self.roll(action.unsqueeze(0)))
        self.restore()
        return {name: torch.cat([o[name][1:] for o in outcomes]) for name in outcomes[0]}

    def roll(self, actions: torch.Tensor, fields: Sequence[str] = STATE) -> Outcome:
        """Take the steps of `actions`; see the function."""
        return roll(self.env, actions, fields)


def roll(env: Env[Any], actions: torch.Tensor, fields: Sequence[str] = STATE) -> Outcome:
    """Take the steps of `actions` `(steps, num_envs, number of actions)`.

    The first row of what is returned is that of now: no step leads to it. Observations are those
    after resets; `fields` of the simulation are those before.
    """

    def kept(value: torch.Tensor) -> torch.Tensor:
        return value.reshape(env.num_envs, -1).to("cpu", torch.float64, copy=True)

    def state() -> Outcome:
        return {f"sim.{name}": kept(getattr(env.sim, name)) for name in fields}

    def row(state: Outcome, failed: torch.Tensor) -> Outcome:
        groups: Any = env.get_observations().items()
        found = {f"observe()[{name!r}]": kept(group) for name, group in groups}
        terms = zip(env.reward_names, env.terms, strict=True)
        found |= {f"rewards()[{name!r}]": kept(term) for name, term in terms}
        return found | state | {"terminated()": kept(failed)}

    states = [state()]
    rows = [row(states[0], torch.zeros_like(env.episode_length_buf))]
    env.before_reset = lambda _: states.append(state())
    for action in actions:
        _, _, dones, extras = env.step(action.to(env.device))
        rows.append(row(states[-1], dones & ~extras["time_outs"]))
    del env.before_reset
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def first_difference(one: Outcome, other: Outcome, worlds: slice) -> str | None:
    """Return the name of what differs first in the chosen worlds; causes come before effects."""
    causes = ("terminated()", "sim.", "rewards()", "observe()")
    found: list[tuple[int, int, str]] = []
    for name, values in one.items():
        different = differs(values[1:, worlds], other[name][1:, worlds]).any(dim=2).any(dim=1)
        if different.any():
            order = next(i for i, kind in enumerate(causes) if name.startswith(kind))
            found.append((int(different.nonzero()[0]), order, name))
    return min(found)[2] if found else None
