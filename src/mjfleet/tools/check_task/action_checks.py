"""Whether actions change something, and how episodes end."""

from collections.abc import Iterator

import torch
from mujoco import mjtJoint

from mjfleet.tools.check_task.finding import Finding, columns
from mjfleet.tools.check_task.random_states import write_random_states
from mjfleet.tools.check_task.subject import STATE, Outcome, Subject, differs, roll

EFFECT_STEPS = 20  # Within which an action must change the state, a late motor's too.
EARLY = 3  # Steps: episodes that end that soon teach nothing.
CERTAIN = 10  # Rounds of random states in which an end must come to be one of any state.
TRIED_LENGTHS = 10  # Steps in which each environment has another length.


def dead_actions(subject: Subject) -> Iterator[Finding]:
    """Find actions that change nothing in the simulation, by changing one in each world."""
    env, count, fields = subject.env, subject.env.num_actions, (*STATE, "ctrl")
    actions = subject.actions(EFFECT_STEPS, seed=1)
    others = subject.actions(EFFECT_STEPS, seed=2)
    plain = roll(env, actions, fields)
    effects = {f"sim.{name}": torch.zeros(count, device=env.device) for name in fields}
    worlds = torch.arange(env.num_envs, device=env.device)
    for first in range(0, count, env.num_envs):
        subject.restore()
        mine, changed = (first + worlds) % count, actions.clone()
        changed[:, worlds, mine] = others[:, worlds, mine]
        other = roll(env, changed, fields)
        for name, sums in effects.items():
            moved = differs(plain[name], other[name]).any(dim=2).any(dim=0)
            sums.index_add_(0, mine, moved.float())
    drives = effects.pop("sim.ctrl") > 0
    dead = torch.stack(tuple(effects.values())).sum(dim=0) == 0
    place = subject.trace.writer_of(env.sim.ctrl)
    place = place if place and place.function == "apply" else subject.method_place("apply")
    for chosen, why in (
        (dead & drives, "it changes sim.ctrl, but nothing moves; look at the gains and gear "
         "of its actuator in the model, and at the joint that it drives"),
        (dead & ~drives, "apply() does nothing with it, or limits it to one number; write "
         "sim.ctrl[:] from it, or let count_actions() return fewer"),
    ):  # fmt: skip
        if chosen.any():
            some = f"the action{columns(chosen)} changes nothing"
            which = "the actions change nothing" if chosen.all() else some
            yield Finding(f"{which} within {EFFECT_STEPS} steps: {why}", place)


def early_ends(subject: Subject, run: Outcome) -> Iterator[Finding]:
    """Find that episodes end at once."""
    env, lengths = subject.env, []
    age = torch.zeros(env.num_envs)
    for failed in run["terminated()"][1:, :, 0].bool():
        age += 1
        lengths.append(age[failed])
        age = age.masked_fill(failed, 0.0)
    ended = torch.cat(lengths)
    if len(ended) <= env.num_envs or env.max_episode_length <= EARLY:
        return
    share = float((ended == 1).double().mean())
    if share > 0.3:
        text = f"true after the first step of {share:.0%} of all episodes"
    elif float(ended.median()) <= EARLY:
        text = f"true after {ended.median():.0f} steps of most episodes"
    else:
        return
    hint = "; robots start upside down: quaternions are w, x, y, z" * _start_upside_down(subject)
    yield Finding(
        f"terminated(): {text}, with random actions, so that nothing can be learned; let it be "
        "true only for what has failed, and start in reset_worlds() from states that have not"
        f"{hint}",
        subject.place_of("terminated()"),
    )


def _start_upside_down(subject: Subject) -> bool:
    """Return whether a floating body's z axis points down at the start in all environments."""
    env, model = subject.env, subject.env.sim.model
    env._reset(subject.everywhere)
    floating = model.jnt_qposadr[model.jnt_type == int(mjtJoint.mjJNT_FREE)]
    tilts = [env.sim.qpos[:, int(at) + 4 : int(at) + 6].square().sum(dim=1) for at in floating]
    return any(bool((tilt > 0.5).all()) for tilt in tilts)


def ends_by_length(subject: Subject) -> Iterator[Finding]:
    """Find that `terminated` is true at some length of an episode, whatever the state."""
    env, longest = subject.env, subject.env.max_episode_length

    def failures(lengths: torch.Tensor | int, seed: int | None = None) -> torch.Tensor:
        """Step environments whose episodes are then so long, from random states on request."""
        subject.restore()
        if seed is not None:
            write_random_states(env, torch.Generator().manual_seed(seed))
            env.sim.forward()
        env.episode_length_buf.copy_(torch.as_tensor(lengths, device=env.device) - 1)
        _, _, dones, extras = env.step(torch.zeros_like(env.action))
        return dones & ~extras["time_outs"]

    at_first, sought = failures(1), torch.arange(2, longest + 1)
    tried = sought[:: max(1, len(sought) // (TRIED_LENGTHS * env.num_envs))]
    tried = torch.cat((tried, sought[-env.num_envs :]))
    suspects: set[int] = set()
    for chunk in tried.split(env.num_envs):
        lengths = torch.cat((chunk, chunk[-1:].expand(env.num_envs - len(chunk))))
        suspects |= {*lengths[(failures(lengths) & ~at_first).cpu()].tolist()}
    for length in sorted(suspects)[:1] + sorted(suspects)[-1:]:
        always = all(bool(failures(length, seed).all()) for seed in (None, *range(CERTAIN)))
        if always and not all(bool(failures(1, seed).all()) for seed in range(CERTAIN)):
            when = "its greatest length" if length == longest else f"{length} of {longest} steps"
            yield Finding(
                f"terminated() is true when an episode reaches {when}, in any state: a time-out "
                "is added anyway, after episode_seconds, and as a failure it would teach that "
                "what follows is worth nothing; leave it out",
                subject.place_of("terminated()"),
            )
            return
