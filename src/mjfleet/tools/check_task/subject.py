"""An environment under examination: it acts, and goes back to an earlier state.

Two futures can thus be compared that begin in the same state.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from mjfleet.config import AgentConfig
from mjfleet.env.environment import Env
from mjfleet.env.random_numbers import random_states, restore_random_states
from mjfleet.rl.pinned_state import PinnedState
from mjfleet.tools.check_task.call_trace import METHODS, CallTrace
from mjfleet.tools.check_task.finding import Finding, Place
from mjfleet.tools.check_task.tensor_use import memory

Outcome = dict[str, torch.Tensor]
"""What some steps led to: `(steps, num_envs, size)` by name, such as "sim.qpos", "terminated()" and
"rewards()['upright']". Ends of episodes are failures alone, without time-outs."""
Births = dict[str, Place | None]
"""Lines where observations and rewards that are not finite came from, by their names."""
CAUSES = ("terminated()", "sim.q", "sim.act", "rewards()", "observe()", "sim.mocap")
"""Beginnings of the names in an Outcome: in one step, the former may be why the latter differ."""
STATE = ("qpos", "qvel", "act", "mocap_pos", "mocap_quat")
BASE_NAMES = {
    "cfg", "sim", "num_envs", "device", "env_ids", "generator", "action", "episode_length_buf",
    "terms", "measured", "spoilt", "recorder", "reward_names", "metric_names", "shard",
    "evaluated_levels", "first_levels",
}  # fmt: skip
"""Attributes that the base class makes."""


class Snapshot:
    """The state of an environment at the time when this is made."""

    def __init__(self, env: Env[Any]) -> None:
        self._env = env
        self._pinned = PinnedState({"env": env})
        self._tensors = [(tensor, tensor.clone()) for tensor in self._pinned.tensors()]
        self._fields = {name: field.clone() for name, field in env.sim.state().items()}
        self._generator = env.generator.get_state()
        self._host = random_states(str(env.device))

    def restore(self) -> None:
        """Put everything back."""
        self._pinned.put_back()
        for tensor, value in self._tensors:
            tensor.copy_(value)
        self._env.sim.restore(self._fields)
        self._env.generator.set_state(self._generator)
        restore_random_states(self._host, str(self._env.device))


class Subject:
    """A task's environment, how it is trained, and what has been seen of its calls."""

    def __init__(self, env: Env[Any], agent: AgentConfig, trace: CallTrace) -> None:
        self.env, self.agent, self.trace = env, agent, trace
        self.everywhere = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        self._start = Snapshot(env)

    def check(self, check: Callable[..., Iterator[Finding]], *arguments: Any) -> list[Finding]:
        """Return what a check finds, which may do anything to the environment meanwhile."""
        self._start = Snapshot(self.env)
        findings = list(check(self, *arguments))
        self.restore()
        return findings

    def restore(self) -> None:
        """Go back to the state in which the newest check began; between checks it is the same."""
        self._start.restore()

    def actions(self, steps: int, seed: int = 0) -> torch.Tensor:
        """Return what an untrained policy would do, `(steps, num_envs, number of actions)`."""
        env, generator = self.env, torch.Generator().manual_seed(seed)
        noise = torch.randn(steps, env.num_envs, env.num_actions, generator=generator)
        return (self.agent.actor.distribution.init_std * noise).to(env.device)

    def steps(
        self,
        actions: torch.Tensor,
        before_step: Callable[[], object],
        fields: Sequence[str] = STATE,
    ) -> tuple[Outcome, Births]:
        """Take steps as `roll` does, each after a call of `before_step`; return where bad numbers
        came from, too."""
        outcomes, births = list[Outcome](), Births()
        for action in actions:
            before_step()
            outcomes.append(roll(self.env, action.unsqueeze(0), fields))
            births = self.trace.births() | births
        return joined(outcomes), births

    def place_of(self, name: str, column: int = 0) -> Place | None:
        """Return the line that made a column of an Outcome; for the state, where apply() begins."""
        method = name.split("()", maxsplit=1)[0]
        if method not in METHODS:
            return self.method_place("apply")
        return self.trace.place_of(name, column) or self.method_place(method)

    def writer_of(self, tensor: torch.Tensor | None, method: str) -> Place | None:
        """Return the line that has written a tensor last, or where the method begins that may."""
        return self.trace.writer_of(tensor) or self.method_place(method)

    def method_place(self, method: str) -> Place | None:
        """Return the first line of a task's method; None if it is that of the base class."""
        function: Any = getattr(type(self.env), method)
        function = getattr(function, "__func__", function)
        of_base = getattr(Env, method, None)
        if function is getattr(of_base, "__func__", of_base):
            return None
        code = inspect.unwrap(function).__code__
        return Place(code.co_filename, code.co_firstlineno, method)


def roll(env: Env[Any], actions: torch.Tensor, fields: Sequence[str] = STATE) -> Outcome:
    """Take the steps of `actions` `(steps, num_envs, number of actions)`.

    The first row of what is returned is that of now: no step leads to it. Observations are those
    after resets; `fields` of the simulation are those before.
    """
    states = [_state(env, fields)]
    rows = [_row(env, states[0], torch.zeros_like(env.episode_length_buf, dtype=torch.bool))]
    env.before_reset = lambda _: states.append(_state(env, fields))
    for action in actions:
        _, _, dones, extras = env.step(action.to(env.device))
        rows.append(_row(env, states[-1], dones & ~extras["time_outs"]))
    del env.before_reset
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _state(env: Env[Any], fields: Sequence[str]) -> Outcome:
    return {f"sim.{name}": getattr(env.sim, name).flatten(1).clone() for name in fields}


def _row(env: Env[Any], state: Outcome, failed: torch.Tensor) -> Outcome:
    groups: Any = env.get_observations().items()
    row: Outcome = {f"observe()[{name!r}]": group.flatten(1) for name, group in groups}
    row |= {
        f"rewards()[{name!r}]": term.unsqueeze(1)
        for name, term in zip(env.reward_names, env.terms, strict=True)
    }
    return row | state | {"terminated()": failed.unsqueeze(1)}


def joined(outcomes: Sequence[Outcome]) -> Outcome:
    """Return outcomes of single steps as one, on the CPU, in float64."""
    first = outcomes[0]
    return {
        name: torch.cat((values[:1], *(each[name][1:] for each in outcomes))).double().cpu()
        for name, values in first.items()
    }


def differs(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return where two values differ by more than rounding, as a mask of their shape."""
    return ~one.double().isclose(other.double(), rtol=1e-5, atol=1e-7, equal_nan=True)


def first_difference(one: Outcome, other: Outcome, worlds: slice) -> str | None:
    """Return the name of what differs first in the chosen worlds, what explains others before."""
    found: list[tuple[int, int, str]] = []
    for name, values in one.items():
        different = differs(values[1:, worlds], other[name][1:, worlds]).any(dim=2).any(dim=1)
        if different.any():
            order = next(i for i, kind in enumerate(CAUSES) if name.startswith(kind))
            found.append((int(different.nonzero()[0]), order, name))
    return min(found)[2] if found else None


def own_tensors(env: Env[Any]) -> dict[str, torch.Tensor]:
    """Return the task's own tensors with a row per world, by name.

    Those of its parts, such as a Delay, are included, and those of the base class are not.
    """
    fields = [*vars(env.sim).values(), *env.sim._expanded.values()]
    of_sim = {memory(field) for field in fields if isinstance(field, torch.Tensor)}
    found: dict[str, torch.Tensor] = {}
    for name, value in vars(env).items():
        if name not in BASE_NAMES and not name.startswith("_"):
            found |= dict(_tensors(f"self.{name}", value))
    return {
        name: tensor
        for name, tensor in found.items()
        if rows_of(env, tensor) is not None and memory(tensor) not in of_sim
    }


def own_copies(env: Env[Any]) -> dict[str, torch.Tensor]:
    """Return copies of them."""
    return {name: tensor.clone() for name, tensor in own_tensors(env).items()}


def rows_of(env: Env[Any], tensor: torch.Tensor) -> int | None:
    """Return the dimension of a tensor, the first or the second, that numbers the worlds."""
    sizes = list(tensor.shape[:2])
    return sizes.index(env.num_envs) if env.num_envs in sizes else None


def _tensors(path: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, torch.nn.Module):
        yield from ((f"{path}.{name}", buffer) for name, buffer in value.named_buffers())
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(f"{path}[{key!r}]", item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _tensors(f"{path}[{index}]", item)
