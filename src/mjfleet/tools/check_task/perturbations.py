"""Puts something into random states in the midst of a step, and looks at what follows from it."""

from collections.abc import Iterator
from typing import Any

import torch

from mjfleet.config import AgentConfig
from mjfleet.env.environment import Env
from mjfleet.sim.simulation import ACCELERATION_FIELDS
from mjfleet.tools.check_task.call_trace import CallTrace, method_place
from mjfleet.tools.check_task.finding import Finding
from mjfleet.tools.check_task.random_states import write_random_states
from mjfleet.tools.check_task.random_steps import random_actions
from mjfleet.tools.check_task.snapshot import (
    Outcome,
    Snapshot,
    differs,
    first_difference,
    own_copies,
    own_tensors,
    roll,
)

LEAK_ROUNDS = 10
LATE_ROUNDS = 6
FORCES = (*ACCELERATION_FIELDS, "sensordata")  # `forward` leaves them as the physics made them.
LATE = 0.25  # Share of worlds that must follow a state one step late before anything is said.


def leaks_between_worlds(env: Env[Any], agent: AgentConfig, trace: CallTrace) -> Iterator[Finding]:
    """Find what changes in one half of the worlds if only the other half has another state.

    In every second round, these others time out too.
    """
    snapshot, generator = Snapshot(env), torch.Generator().manual_seed(13)
    half = env.num_envs // 2
    for number in range(LEAK_ROUNDS):
        futures: list[Outcome] = []
        for changes in (False, True):
            snapshot.restore()
            if changes:
                write_random_states(env, generator, slice(half))
                if number % 2:
                    env.episode_length_buf[:half] = env.max_episode_length - 1
            env.sim.forward()
            futures.append(roll(env, random_actions(env, agent, 2, seed=14 + number)))
        one, other = futures
        if name := first_difference(one, other, slice(half, None)):
            method, key = name.split("()")[0], name.split("'")[1] if "'" in name else ""
            yield Finding(
                f"{name} of an environment depends on the other environments: it differs when "
                "only these are in another state; sum, average, sort and ask any() or all() "
                "within a row (dim=1), and not over worlds",
                trace.place_of(method, key) or method_place(env, "apply"),
            )
            break
    snapshot.restore()


def late_signals(env: Env[Any], agent: AgentConfig, trace: CallTrace) -> Iterator[Finding]:
    """Find rewards and failures that follow from the state before the step, not after it.

    After the physics of a step, the state becomes a random one, and so does what `apply` has kept,
    since a term may be about the action alone.
    """
    snapshot, generator = Snapshot(env), torch.Generator().manual_seed(15)
    before = own_copies(env)
    env.apply(random_actions(env, agent, 1, seed=29)[0])
    now = own_copies(env)
    of_apply = [name for name in now if name in before and not torch.equal(now[name], before[name])]
    physics, changes_now = env.sim.step, False

    def step(n: int = 1) -> None:
        physics(n)
        if changes_now:
            write_random_states(env, generator)
        env.sim.forward()
        if changes_now:
            own, fields = own_tensors(env), vars(env.sim)
            forces = [fields[name] for name in FORCES if name in fields]
            kept = [own[name] for name in of_apply if own[name].is_floating_point()]
            for tensor in (env.sim.ctrl, env.action, *forces, *kept):
                tensor.add_(1.0)

    changed_now, changed_later = dict[str, int](), dict[str, int]()
    going_on = 0
    for number in range(LATE_ROUNDS):
        futures: list[Outcome] = []
        goes_on = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        for is_other in (False, True):
            changes_now = is_other
            snapshot.restore()
            actions = random_actions(env, agent, 2, seed=30 + number)
            object.__setattr__(env.sim, "step", step)
            _, _, dones, _ = env.step(actions[0])
            object.__delattr__(env.sim, "step")
            future = roll(env, actions[1:])
            future["terminated()"][0] = dones.unsqueeze(1)
            futures.append(future)
            goes_on &= ~dones
        one, other = futures
        going_on += int(goes_on.sum())
        for name, values in one.items():
            if name.startswith(("rewards()", "terminated()")):
                now, later = differs(values, other[name]).squeeze(2)
                changed_now[name] = changed_now.get(name, 0) + int(now.sum())
                changed_later[name] = changed_later.get(name, 0) + int((later & goes_on).sum())
    snapshot.restore()
    for name, count in changed_later.items():
        if not changed_now[name] and count > LATE * going_on > 0:
            method, key = name.split("()")[0], name.split("'")[1] if "'" in name else ""
            yield Finding(
                f"{name} follows from the state before the step, so that an action is paid for "
                "what the one before it has done; compute it from self.sim in rewards(), which is "
                "called after the physics, and not from what observe() or an earlier call has kept",
                trace.place_of(method, key) or method_place(env, method),
            )
