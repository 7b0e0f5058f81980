"""What steps with random actions tell: observations, rewards, controls and ends of episodes."""

import copy
import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch

from mjfleet.env.environment import Env
from mjfleet.tools.check_task.finding import Finding, columns, differs, spread
from mjfleet.tools.check_task.subject import STATE, Outcome, Subject, roll

STEPS = 99  # Odd, so that what trades places in each step has changed.
ROUNDS = 20  # Of random states in all environments.
MOST, LEAST = 10.0, 0.02
"""Root mean squares of an observation beyond which a network that does not normalise learns badly.
"""
LARGE_REWARD = 1000.0
"""Root mean square of a reward term per step beyond which no critic follows the returns."""
SATURATED = 0.95  # Share of steps in which a control is at its limit, and should not be.
EFFECT_STEPS = 20  # Within which an action must change the state, a late motor's too.
EARLY = 3  # Steps: episodes that end that soon teach nothing.


def random_steps(subject: Subject) -> Outcome:
    """Take STEPS steps with an untrained policy's actions, with controls and forces."""
    return subject.roll(subject.actions(STEPS), (*STATE, "ctrl", "actuator_force"))


def engine_warnings(env: Env[Any]) -> Iterator[Finding]:
    """Find what the engine warns of."""
    for kind, worlds in env.sim.warnings().items():
        yield Finding(
            f"the engine reports {kind} in {worlds} of {env.num_envs} environments; look at the "
            "model, and at what apply() and reset_worlds() write"
        )


def not_finite(run: Outcome) -> list[Finding]:
    """Find numbers that are not finite; of a bad state, the state alone."""
    found: dict[str, Finding] = {}
    for name, values in run.items():
        bad = ~values.isfinite()
        if bad.any():
            some = int(bad.any(dim=2).any(dim=0).sum())
            first = int(bad.any(dim=2).any(dim=1).nonzero()[0])
            found[name] = Finding(
                f"{name}{columns(bad.any(dim=1).any(dim=0))}: not finite, first in step {first}, "
                f"in {some} of {bad.shape[1]} environments; look for divisions by zero, roots, "
                "logarithms and bodies that overlap"
            )
    states = [found[f"sim.{name}"] for name in STATE if f"sim.{name}" in found]
    return states or list(found.values())


def rare_numbers(states: Outcome) -> Iterator[Finding]:
    """Find observations and rewards that are not finite in states which are seldom reached."""
    for name, values in states.items():
        bad = ~values.isfinite()
        if name.startswith(("observe", "rewards")) and bad.any():
            yield Finding(
                f"{name}{columns(bad.any(dim=0).any(dim=0))}: not finite in "
                f"{float(bad.any(dim=2).double().mean()):.1%} of random states, which a policy may "
                "reach, and which would end its training; limit the argument of a root, logarithm, "
                "acos or division, as in x.clamp(min=1e-6)",
                is_sure=False,
            )


def constant_columns(values: torch.Tensor) -> torch.Tensor:
    """Return which columns of `(steps, num_envs, size)` change by rounding only, `(size,)`."""
    low, high = values.amin(dim=(0, 1)), values.amax(dim=(0, 1))
    return high - low <= 1e-7 + 1e-6 * torch.maximum(high.abs(), low.abs())


def constant_signals(subject: Subject, run: Outcome, states: Outcome) -> Iterator[Finding]:
    """Find what never changes, neither with random actions nor in random `states`."""
    may_fail = subject.overrides("terminated")
    for name in (name for name in run if name.startswith(("observe()", "rewards()"))):
        values = run[name][1:]
        constant = constant_columns(torch.cat((values, states[name])))
        first = values[0, 0][constant]
        if not constant.any() or (_could_change(subject, name) | ~constant).all():
            continue
        if name.startswith("rewards()") and may_fail and (first > 0).any():
            continue  # It pays for each step without a failure.
        numbers = ", ".join(f"{float(number) + 0:g}" for number in first[:4])
        where = "" if constant.all() else columns(constant)
        yield Finding(
            f"{name}{where}: {numbers}{', ...' * (len(first) > 4)} in all environments and steps, "
            "so that nothing is learned from it; compute it from the state, or leave it out"
        )
    if may_fail and not any(each["terminated()"].any() for each in (run, states)):
        yield Finding(
            "terminated() is never true, neither with random actions nor in random states; look at "
            "its condition, or leave it out",
            is_sure=False,
        )


def _could_change(subject: Subject, name: str) -> torch.Tensor:
    """Return which columns of a signal that does not change could, `(size,)`.

    A reward term could if a number of the configuration were not 0. An observation could if it
    shows a declared state, such as a command whose range has no width.
    """
    env, (method, key) = subject.env, (name.split("()", maxsplit=1)[0], name.split("'")[1])

    def value() -> torch.Tensor:
        return getattr(env, method)()[key].reshape(env.num_envs, -1).double().cpu()

    before, cfg = value(), env.cfg
    found = torch.zeros(before.shape[1], dtype=torch.bool)
    if method == "rewards":
        env.cfg = _ones_for_zeros(cfg)
        found |= differs(before, value()).any(dim=0)
        env.cfg = cfg
        return found
    for tensor in env._states.of_envs.values():
        subject.restore()
        before = value()
        subject.restore()
        if tensor.is_floating_point():
            tensor.add_(1.0)
            found |= differs(before, value()).any(dim=0)
    subject.restore()
    return found


def _ones_for_zeros(cfg: Any) -> Any:
    """Return a copy of a configuration, which is not checked again, with 1.0 for each 0.0."""
    other = copy.copy(cfg)
    for field in fields(cfg):
        value = getattr(cfg, field.name)
        if is_dataclass(value):
            object.__setattr__(other, field.name, _ones_for_zeros(value))
        elif type(value) is float and value == 0:
            object.__setattr__(other, field.name, 1.0)
    return other


def unscaled_observations(subject: Subject, run: Outcome) -> Iterator[Finding]:
    """Find columns that are too large or small for networks that do not normalise them."""
    agent, seen = subject.agent, dict[str, str]()
    for network, groups in (("actor", agent.obs_groups.actor), ("critic", agent.obs_groups.critic)):
        if not getattr(agent, network).obs_normalization:
            seen = dict.fromkeys(groups, network) | seen
    for group, network in seen.items():
        name = f"observe()[{group!r}]"
        size = run[name].square().mean(dim=(0, 1)).sqrt()
        small = (size < LEAST) & ~constant_columns(run[name])
        for wrong, word in (((size > MOST) & size.isfinite(), "large"), (small, "small")):
            if wrong.any():
                yield Finding(
                    f"{name}{columns(wrong)}: {word}, root mean square {spread(size[wrong])}; "
                    f"scale it to about 1, or set agent.{network}.obs_normalization"
                )


def large_rewards(run: Outcome) -> Iterator[Finding]:
    """Find reward terms that no critic can follow, as squared accelerations without a weight."""
    for name, values in run.items():
        size = float(values[1:].square().mean().sqrt())
        if name.startswith("rewards()") and LARGE_REWARD < size < math.inf:
            yield Finding(
                f"{name}: large, root mean square {size:.2g} in each step; multiply it by a "
                "smaller weight, so that the sum of all terms is about 1",
                is_sure=False,
            )


def saturated_actuators(subject: Subject, run: Outcome) -> Iterator[Finding]:
    """Find actuators whose control or force is beyond a limit whatever the policy does."""
    model = subject.env.sim.model
    # An actuator may have several controls, and several forces, whose norm alone is limited.
    of_control, of_force = (
        np.repeat(np.arange(model.nactuator), numbers)
        for numbers in (model.actuator_ctrlnum, model.actuator_outnum)
    )
    one_force = model.actuator_forcelimited & (model.actuator_outnum == 1)
    forces = one_force[of_force], model.actuator_forcerange[of_force]
    for what, field, owners, limited, limits in (
        ("control", "ctrl", of_control, model.actuator_ctrllimited, model.actuator_ctrlrange),
        ("force", "actuator_force", of_force, *forces),
    ):
        values = run[f"sim.{field}"][1:]
        low, high = torch.as_tensor(limits).double().unbind(1)
        slack = 1e-6 * (high - low)
        share = ((values <= low + slack) | (values >= high - slack)).double().mean(dim=(0, 1))
        bad = (share > SATURATED) & torch.as_tensor(limited.astype(bool))
        if bad.any():
            found = dict.fromkeys(owners[bad.numpy()].tolist())
            names = [model.actuator(i).name or str(i) for i in found]
            yield Finding(
                f"the {what} of actuator {', '.join(names)} is at its limit in "
                f"{float(share[bad].min()):.0%} of all steps with random actions of about 1, so "
                "that the policy hardly changes it; scale the action in apply(), or widen "
                f"{'ctrlrange' if what == 'control' else 'forcerange'} in the model",
                is_sure=False,
            )


def dead_actions(subject: Subject) -> Iterator[Finding]:
    """Find actions that change nothing in the simulation, by changing one in each environment."""
    env, count, names = subject.env, subject.env.num_actions, (*STATE, "ctrl")
    actions, others = subject.actions(EFFECT_STEPS, seed=1), subject.actions(EFFECT_STEPS, seed=2)
    plain = roll(env, actions, names)
    effects = {f"sim.{name}": torch.zeros(count) for name in names}
    envs = torch.arange(env.num_envs)
    for first in range(0, count, env.num_envs):
        subject.restore()
        mine, turned = (first + envs) % count, actions.clone()
        turned[:, envs, mine] = others[:, envs, mine]
        other = roll(env, turned, names)
        for name, sums in effects.items():
            moved = differs(plain[name], other[name]).any(dim=2).any(dim=0)
            sums.index_add_(0, mine, moved.float())
    drives = effects.pop("sim.ctrl") > 0
    dead = torch.stack(tuple(effects.values())).sum(dim=0) == 0
    for chosen, why in (
        (dead & drives, "it changes sim.ctrl, but nothing moves; look at the gains and gear of its "
         "actuator in the model, and at the joint that it drives"),
        (dead & ~drives, "apply() does nothing with it, or limits it to one number; write "
         "sim.ctrl[:] from it, or let count_actions() return fewer"),
    ):  # fmt: skip
        if chosen.any():
            some = f"the action{columns(chosen)} changes nothing"
            which = "the actions change nothing" if chosen.all() else some
            yield Finding(f"apply(): {which} within {EFFECT_STEPS} steps: {why}")


def early_ends(subject: Subject, run: Outcome) -> Iterator[Finding]:
    """Find that episodes end at once."""
    env, lengths, age = subject.env, list[torch.Tensor](), torch.zeros(subject.env.num_envs)
    for failed in run["terminated()"][1:, :, 0].bool():
        age += 1
        lengths.append(age[failed])
        age = age.masked_fill(failed, 0.0)
    ended = torch.cat(lengths)
    if len(ended) <= env.num_envs or env.max_episode_length <= EARLY:
        return
    if (share := float((ended == 1).double().mean())) > 0.3:
        text = f"true after the first step of {share:.0%} of all episodes"
    elif float(ended.median()) <= EARLY:
        text = f"true after {ended.median():.0f} steps of most episodes"
    else:
        return
    yield Finding(
        f"terminated(): {text}, with random actions, so that nothing can be learned; let it be "
        "true only for what has failed, and start in reset_worlds() from states that have not "
        "(a quaternion is w, x, y, z)"
    )


def ends_by_length(subject: Subject) -> Iterator[Finding]:
    """Find that `terminated` is true at the length at which an episode times out."""
    env = subject.env
    if not subject.overrides("terminated"):
        return

    def failures(length: int) -> torch.Tensor:
        subject.restore()
        env.episode_length_buf.fill_(length - 1)
        _, _, dones, extras = env.step(torch.zeros_like(env.action))
        return dones & ~extras["time_outs"]

    at_first = failures(1)
    for length in (env.max_episode_length, env.max_episode_length - 1):
        if length > 1 and bool((failures(length) & ~at_first).all()):
            yield Finding(
                f"terminated() is true at {length} of {env.max_episode_length} steps whatever the "
                "state, so that time-outs count as failures; leave them to the base class"
            )
            return
