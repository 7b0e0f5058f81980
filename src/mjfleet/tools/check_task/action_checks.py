"""Whether actions change something, and how episodes end."""

from collections.abc import Iterator
from typing import Any

import torch

from mjfleet.config import AgentConfig
from mjfleet.env.environment import Env
from mjfleet.env.learnability import DEAD_ACTIONS, EARLY_ENDS
from mjfleet.tools.check_task.call_trace import CallTrace, method_place
from mjfleet.tools.check_task.finding import Finding
from mjfleet.tools.check_task.random_states import upside_down, write_random_states
from mjfleet.tools.check_task.random_steps import columns, random_actions
from mjfleet.tools.check_task.snapshot import Snapshot, differs, roll

EFFECT_STEPS = 20  # Within which an action must change the state, a late motor's too.
EARLY = 3  # Steps: episodes that end that soon teach nothing.
CERTAIN = 10  # Rounds of random states in which an end must come to be one of any state.
TRIED_LENGTHS = 10  # Steps in which each environment has another length.


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
        (dead & ~sets_control, "apply() does nothing with it, or limits it to one number; write "
         "sim.ctrl[:] from it, or let count_actions() return fewer"),
    ):  # fmt: skip
        if chosen.any():
            which = DEAD_ACTIONS if chosen.all() else f"the action{columns(chosen)} changes nothing"
            yield Finding(f"{which} within {EFFECT_STEPS} steps: {why}", place)


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
    env._reset(torch.ones_like(env._whole))
    hint = "; robots start upside down: quaternions are w, x, y, z" * upside_down(env)
    yield Finding(
        f"terminated(): {text}, with random actions, {EARLY_ENDS}{hint}",
        trace.place_of("terminated") or method_place(env, "terminated"),
    )


def ends_by_length(env: Env[Any], trace: CallTrace) -> Iterator[Finding]:
    """Find that `terminated` is true at some length of an episode, whatever the state."""
    snapshot, longest = Snapshot(env), env.max_episode_length

    def failures(lengths: torch.Tensor | int, seed: int | None = None) -> torch.Tensor:
        """Step environments whose episodes are then so long, from random states on request."""
        snapshot.restore()
        if seed is not None:
            write_random_states(env, torch.Generator().manual_seed(seed))
            env.sim.forward()
        env.episode_length_buf.copy_(torch.as_tensor(lengths, device=env.device) - 1)
        _, _, dones, extras = env.step(torch.zeros_like(env.action))
        return dones & ~extras["time_outs"]

    at_first, sought = failures(1), torch.arange(2, longest + 1)
    tried = sought[:: max(1, len(sought) // (TRIED_LENGTHS * env.num_envs))]
    tried = torch.cat((tried, sought[-env.num_envs :]))
    suspects: list[int] = []
    for chunk in tried.split(env.num_envs):
        lengths = torch.cat((chunk, chunk[-1:].expand(env.num_envs - len(chunk))))
        failed = (failures(lengths) & ~at_first).cpu()
        suspects += sorted(set(lengths[failed].tolist()))
    place = trace.place_of("terminated") or method_place(env, "terminated")
    for length in sorted(suspects)[:1] + sorted(suspects)[-1:]:
        always = all(bool(failures(length, seed).all()) for seed in (None, *range(CERTAIN)))
        if always and not all(bool(failures(1, seed).all()) for seed in range(CERTAIN)):
            when = "its greatest length" if length == longest else f"{length} of {longest} steps"
            yield Finding(
                f"terminated() is true when an episode reaches {when}, in any state: a time-out "
                "is added anyway, after episode_seconds, and as a failure it would teach that "
                "what follows is worth nothing; leave it out",
                place,
            )
            break
    snapshot.restore()
