"""What a task remembers: what is declared, what resets do to it, and who may write it."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import mujoco
import numpy as np
import torch
from mujoco import mjtJoint

from mjfleet.env.random_numbers import random_states
from mjfleet.env.undeclared import Look
from mjfleet.sim.simulation import DERIVED_FIELDS
from mjfleet.tools.check_task.finding import Finding, changed, differs
from mjfleet.tools.check_task.subject import Subject

RESETS = 30  # After which a change that adds up has grown.
GROWTH = 2.5  # Factor by which it must have grown.
BEYOND = 0.1  # Share of a joint's range by which a start may be outside of it.
DEEP = 0.05  # Share of a model's extent by which bodies must overlap before it is told.
OFTEN = 0.05  # Share of environments in which something must be wrong before it is told.
FEW_STARTS = 8  # Environments whose contacts are computed at the start of an episode.


class GlobalGenerators:
    """Notices draws from the generators of torch, NumPy and Python."""

    def __init__(self, device: str) -> None:
        """Remember their states."""
        self._device = device
        self._before = random_states(device)

    def findings(self, where: str) -> Iterator[Finding]:
        """Find which have been drawn from since, in a method or a step."""
        names = {"torch": "torch's", "cuda": "torch's", "numpy": "NumPy's", "python": "Python's"}
        now = random_states(self._device)
        drawn = [name for name, state in now.items() if not _equal(state, self._before[name])]
        for owner in dict.fromkeys(names[name] for name in drawn):
            yield Finding(
                f"{where} draws from {owner} global generator, which the learner draws from too: "
                "workers and resumed runs would not get the numbers that they should; draw with "
                "self.uniform and self.normal"
            )


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


class ClassState:
    """Notices numbers of a task's classes and modules that change in a step."""

    def __init__(self, env: Any, folder: str) -> None:
        """Look at the classes and modules of `folder`."""
        import sys

        own = [m for m in list(sys.modules.values()) if isinstance(m, ModuleType)]
        modules = [m for m in own if str(getattr(m, "__file__", "") or "").startswith(folder)]
        classes = [kind for kind in type(env).__mro__ if kind.__module__.startswith("mjfleet_task")]
        self._looks = {one.__name__.rpartition(".")[2]: (one, Look(vars(one)))
                       for one in (*modules, *classes)}  # fmt: skip

    def findings(self) -> Iterator[Finding]:
        """Find what has changed since."""
        for owner, (one, look) in self._looks.items():
            for name in look.changed(vars(one)):
                yield Finding(
                    f"{owner}.{name} changes in a step: it is shared by all environments of a "
                    "process, and no checkpoint holds it; declare it by self.add_state in setup()"
                )


def undeclared(subject: Subject) -> Iterator[Finding]:
    """Find attributes that change and are not declared, and those that are not looked at."""
    env = subject.env
    for text in map(env.say_undeclared, env.undeclared()):
        yield Finding(text)
    if unseen := env.unseen():
        yield Finding(
            f"self.{', self.'.join(unseen)}: of a type that is not looked at; if it changes in a "
            "step, no checkpoint holds that: declare what changes by self.add_state in setup()",
            is_sure=False,
        )


def who_writes(subject: Subject) -> Iterator[Finding]:
    """Find methods that write what they must not, in random states."""
    env, generator = subject.env, torch.Generator().manual_seed(16)
    allowed = {
        "rewards": "after_physics()", "terminated": "after_physics()", "metrics": "after_physics()",
        "debug_vis": "after_physics()", "commands": "reset_worlds()",
    }  # fmt: skip
    for method, better in allowed.items():
        subject.restore()
        subject.write_random_states(generator)
        before, drawn = subject.state(), env.generator.get_state()
        getattr(env, method)()
        wrong = changed(before, subject.state())
        if not torch.equal(drawn, env.generator.get_state()):
            wrong.append("the random numbers that follow")
        if wrong:
            yield Finding(f"{method}() changes {wrong[0]}, and may be called again; write it in "
                          f"{better}")  # fmt: skip
    subject.restore()
    subject.write_random_states(generator)
    before = {k: v for k, v in subject.state().items() if k in ("sim.qpos", "sim.qvel", "sim.ctrl")}
    env.observe()
    if wrong := changed(before, subject.state()):
        yield Finding(f"observe() changes {wrong[0]}, to which the rewards do not belong any more; "
                      "write it in apply() or reset_worlds()")  # fmt: skip


def reset_leaks(subject: Subject) -> Iterator[Finding]:
    """Reset every second environment and find what changed in the others."""
    env = subject.env
    kept = torch.arange(env.num_envs, device=env.device) % 2 == 0
    before = subject.state()
    env._reset(~kept)
    for name, now in subject.state().items():
        same = ~differs(now[kept], before[name][kept])
        # Some may change, as by a timer.
        if same.view(int(kept.sum()), -1).all(dim=1).float().mean() < 0.75:
            yield Finding(
                f"reset_worlds(mask): changes {name} where mask is false; write "
                "torch.where(mask, new, old), with mask.unsqueeze(1) for (num_envs, size)"
            )


def stale_reads(subject: Subject) -> Iterator[Finding]:
    """Find that a first state follows from positions or sensors of the episode before.

    `reset_worlds` runs again with other numbers where it would read these.
    """
    env, outcomes = subject.env, []
    derived = [getattr(env.sim, name) for name in DERIVED_FIELDS if name in vars(env.sim)]
    for by in (0.0, 0.25, -40.0):
        subject.restore()
        env.sim.reset(subject.everywhere)
        env._states.reset(subject.everywhere)
        for field in derived:
            field.add_(by)
        env.reset_worlds(subject.everywhere)
        outcomes.append(subject.state())
    for name in outcomes[0]:
        if any(bool(differs(outcomes[0][name], other[name]).any()) for other in outcomes[1:]):
            yield Finding(
                f"reset_worlds(): {name} follows from positions or sensors that it reads: these "
                "are still those of the episode that has ended, and are computed anew only after "
                "reset_worlds(); compute it from what you write to sim.qpos, or keep it in "
                "end_episode() if it belongs to that episode"
            )
            return


def variations(subject: Subject) -> Iterator[Finding]:
    """Find fields of the model that are equal in all environments, or drift with each reset."""
    env, sim = subject.env, subject.env.sim
    built = {name: torch.as_tensor(np.asarray(getattr(sim.model, name))) for name in sim.expanded}

    def factors() -> dict[str, torch.Tensor]:
        found = {}
        for name, field in sim.expanded.items():
            was = built[name].double().reshape(1, -1)
            now = field.double().cpu().reshape(env.num_envs, -1)
            found[name] = now[:, (was != 0).flatten()] / was[:, (was != 0).flatten()]
        return found

    env._reset(subject.everywhere)
    first = factors()
    for _ in range(RESETS):
        env._reset(subject.everywhere)
    for name, later in factors().items():
        early = (first[name] - 1).abs().mean()
        if later.numel() and early > 1e-6 and (later - 1).abs().mean() > GROWTH * early:
            yield Finding(
                f"sim.expand({name!r}) drifts away with each reset: a new value is drawn from the "
                "last one; keep a copy of the first values in setup(), and vary that"
            )
        elif (
            later.numel() and early > 1e-6 and not differs(later, later[:1].expand_as(later)).any()
        ):
            yield Finding(
                f"sim.expand({name!r}) varies, and is the same in all environments; draw "
                "(num_envs, size) numbers with self.uniform or self.normal"
            )
    before = subject.state()
    env._reset(subject.everywhere)
    for name, now in subject.state().items():
        is_new = bool(differs(now, before[name]).any())
        if is_new and not bool(differs(now, now[:1].expand_as(now)).any()):
            yield Finding(
                f"reset_worlds(): draws {name} anew, the same for all environments; draw "
                "(num_envs, size) numbers with self.uniform or self.normal"
            )


def first_states(subject: Subject) -> Iterator[Finding]:
    """Find starts with wrong quaternions, angles beyond limits, or bodies that overlap."""
    env = subject.env
    env._reset(subject.everywhere)
    model, qpos = env.sim.model, env.sim.qpos.double().cpu()
    for joint in range(model.njnt):
        name, at = model.joint(joint).name or str(joint), int(model.jnt_qposadr[joint])
        kind = mjtJoint(model.jnt_type[joint])
        low, high = (float(end) for end in model.jnt_range[joint])
        slack = BEYOND * (high - low)
        if kind in (mjtJoint.mjJNT_FREE, mjtJoint.mjJNT_BALL):
            first = at + 3 * (kind == mjtJoint.mjJNT_FREE)
            sizes = qpos[:, first : first + 4].norm(dim=1)
            if float(((sizes - 1).abs() > 0.01).double().mean()) > OFTEN:
                yield Finding(
                    f"reset_worlds(): the quaternion of joint {name} has norm "
                    f"{float(sizes.min()):.2g} to {float(sizes.max()):.2g}; write w, x, y, z, in "
                    "this order and with norm 1"
                )
        elif model.jnt_limited[joint]:
            values = qpos[:, at]
            beyond = (values < low - slack) | (values > high + slack)
            if float(beyond.double().mean()) > OFTEN:
                yield Finding(
                    f"reset_worlds(): episodes start with joint {name} at "
                    f"{float(values.min()):.3g} to {float(values.max()):.3g}, beyond its range of "
                    f"{low:.3g} to {high:.3g} in the model, so that it is thrown back; write "
                    "positions in rad or m within it, or mend the range: degrees, unless the "
                    'model has <compiler angle="radian"/>'
                )
    yield from _overlaps(model, qpos.numpy(), env.sim.mocap_pos.double().cpu().numpy())


def _overlaps(model: mujoco.MjModel, qpos: np.ndarray, mocap_pos: np.ndarray) -> Iterator[Finding]:
    """Find that bodies overlap at the start of most episodes."""
    data, deep = mujoco.MjData(model), list[tuple[float, str]]()
    for i in range(min(FEW_STARTS, len(qpos))):
        data.qpos, data.mocap_pos = qpos[i], mocap_pos[i]
        mujoco.mj_forward(model, data)
        touching = [contact for contact in data.contact if min(contact.geom) >= 0]
        deepest = min(touching, key=lambda contact: contact.dist, default=None)
        if deepest and -deepest.dist > max(0.02, DEEP * float(model.stat.extent)):
            bodies = [model.geom_bodyid[geom] for geom in deepest.geom]
            names = [model.geom(g).name or model.body(b).name
                     for g, b in zip(deepest.geom, bodies, strict=True)]  # fmt: skip
            deep.append((-deepest.dist, " and ".join(names)))
    if len(deep) > FEW_STARTS / 2:
        yield Finding(
            f"reset_worlds(): episodes start with {max(deep)[1]} overlapping by up to "
            f"{max(deep)[0]:.2g} m, so that the robot is thrown away; start higher, or apart",
            is_sure=False,
        )
