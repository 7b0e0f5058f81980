"""Whether actions change something, and how episodes end."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from mujoco import mjtJoint

from mjfleet.config import AgentConfig
from mjfleet.env.environment import Env
from mjfleet.tools.check_task.call_trace import CallTrace, method_place
from mjfleet.tools.check_task.finding import Finding
from mjfleet.tools.check_task.random_steps import columns, random_actions
from mjfleet.tools.check_task.snapshot import Snapshot, differs, roll

EFFECT_STEPS = 20  # Within which an action must change the state, a late motor's too.
RANDOM_STATES = 20  # Rounds of random states in all worlds.
EARLY = 3  # Steps: episodes that end that soon teach nothing.


def dead_actions(env: Env[Any], agent: AgentConfig, trace: CallTrace) -> Iterator[Finding]:
    """Find actions that change nothing in the simulation, by changing one in each world."""
    before, count = Snapshot(env), env.num_actions
    actions = random_actions(env, agent, EFFECT_STEPS, seed=1)
    others = random_actions(env, agent, EFFECT_STEPS, seed=2)
    plain, plain_controls = _roll(env, actions)
    has_effect = torch.zeros(count, dtype=torch.bool)
    sets_control = torch.zeros(count, dtype=torch.bool)
    worlds = torch.arange(env.num_envs, device=env.device)
    for first in range(0, count, env.num_envs):
        before.restore()
        column = first + worlds % min(count, env.num_envs)
        changed = actions.clone()
        mine = column.clamp(max=count - 1)
        changed[:, worlds, mine] = others[:, worlds, mine]
        other, controls = _roll(env, changed)
        moved = differs(plain, other).any(dim=2).any(dim=0).cpu()
        drove = differs(plain_controls, controls).any(dim=2).any(dim=0).cpu()
        for index in range(first, min(first + env.num_envs, count)):
            has_effect[index] = moved[column.cpu() == index].any()
            sets_control[index] = drove[column.cpu() == index].any()
    before.restore()
    dead = ~has_effect
    place = trace.writer_of(env.sim.ctrl)
    place = place if place and place.function == "apply" else method_place(env, "apply")
    for chosen, why in (
        (dead & sets_control, "it changes sim.ctrl, but nothing moves; look at the gains and gear "
         "of its actuator in the model, and at the joint that it drives"),
        (dead & ~sets_control, "apply() does nothing with it; write sim.ctrl[:] from it, or let "
         "count_actions() return fewer"),
    ):  # fmt: skip
        if chosen.any():
            which = "the actions change" if chosen.all() else f"the action{columns(chosen)} changes"
            yield Finding(f"{which} nothing within {EFFECT_STEPS} steps: {why}", place)


def _roll(env: Env[Any], actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the physical state and the controls of some steps."""
    states, controls = [], []
    for action in actions:
        row = roll(env, action.unsqueeze(0))
        states.append(torch.cat([row[name][1] for name in row if name.startswith("sim.")], dim=1))
        controls.append(env.sim.ctrl.clone())
    return torch.stack(states), torch.stack(controls)


def early_ends(env: Env[Any], failures: torch.Tensor, trace: CallTrace) -> Iterator[Finding]:
    """Find that episodes end at once. `failures`: `(steps, num_envs)`, bool."""
    lengths, age = [], torch.zeros(env.num_envs)
    for failed in failures:
        age += 1
        lengths.append(age[failed])
        age = age.masked_fill(failed, 0.0)
    ended = torch.cat(lengths)
    if not len(ended) or env.max_episode_length <= EARLY:
        return
    share = float((ended == 1).double().mean())
    if share > 0.3 and len(ended) > env.num_envs:
        text = f"true after the first step of {share:.0%} of all episodes"
    elif float(ended.median()) <= EARLY and len(ended) > env.num_envs:
        text = f"true after {ended.median():.0f} steps of most episodes"
    else:
        return
    yield Finding(
        f"terminated(): {text}, with random actions, so that nothing can be learned; let it be "
        "true only for what has failed, and start in reset_worlds() from states that have not",
        trace.place_of("terminated") or method_place(env, "terminated"),
    )


def time_outs_as_failures(env: Env[Any], trace: CallTrace) -> Iterator[Finding]:
    """Find that `terminated` is true where an episode only reaches its greatest length."""
    snapshot, shares = Snapshot(env), []
    for length in (0, env.max_episode_length - 1):
        snapshot.restore()
        env.episode_length_buf.fill_(length)
        _, _, dones, extras = env.step(torch.zeros_like(env.action))
        shares.append(float((dones & ~extras["time_outs"]).float().mean()))
    place = trace.place_of("terminated") or method_place(env, "terminated")
    snapshot.restore()
    if env.max_episode_length > 1 and shares[1] > shares[0] + 0.5:
        yield Finding(
            "terminated() is true when an episode reaches its greatest length: such a time-out is "
            "added anyway, and as a failure it would teach that what follows is worth nothing; "
            "leave it out",
            place,
        )


def terms_in_random_states(
    env: Env[Any], agent: AgentConfig
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Step once from each of many random states.

    Returns:
        Signals as those of random steps, `(RANDOM_STATES, num_envs, size)`; and where the task has
        failed, `(RANDOM_STATES, num_envs)`.
    """
    before, generator = Snapshot(env), torch.Generator().manual_seed(3)
    rows, failures = [], []
    for action in random_actions(env, agent, RANDOM_STATES, seed=4):
        before.restore()
        _write_random_state(env, generator)
        env.sim.forward()
        row = roll(env, action.unsqueeze(0))
        rows.append({name: values[1].double().cpu() for name, values in row.items()})
        failures.append(row["terminated()"][1].flatten().cpu())
    before.restore()
    stacked = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return stacked, torch.stack(failures)


def _write_random_state(env: Env[Any], generator: torch.Generator) -> None:
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
        sim.qpos[:, at : at + value.shape[1]] = value.to(sim.qpos)
    speed = 10.0 ** uniform(1, -1.0, 1.0) * torch.randn(count, model.nv, generator=generator)
    sim.qvel[:] = speed.to(sim.qvel)


def _quaternion(count: int, generator: torch.Generator) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(count, 4, generator=generator), dim=1)
