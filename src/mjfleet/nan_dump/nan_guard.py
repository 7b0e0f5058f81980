"""Checks each rollout for numbers that are not finite, and dumps and explains their worlds.

Runs in a worker. A dump, failures/nan_rank<r>.npz, is a rollout of worlds in which a number was not
finite; `mjfleet inspect` prints its explanation. Arrays have steps first, then worlds; k is a step
of the rollout, T the number of its steps:

    start/<field>[k]        state and inputs as the physics of step k started; [T]: after the resets
    end/<field>[k]          qpos, qvel, act as the physics of step k ended, before any reset
    observation/<group>[k]  what the policy saw before step k; [T]: what it would have seen next
    action[k]  term/<name>[k]  reward[k]  done[k]      reward as it is learned from
    worlds  num_envs  iteration  decimation  explanation
"""

import copy
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np
import torch
from rsl_rl.storage import RolloutStorage

from mjfleet.env import Env
from mjfleet.env.step_recorder import StepRecorder
from mjfleet.utils.atomic_write import write_atomically

MAX_WORLDS = 16  # In a dump: those that went bad first.
_ORDER = (
    "start/time", "start/qpos", "start/qvel", "start/act", "observation/", "action", "start/",
    "end/", "term/", "reward",
)  # fmt: skip
"""The order in which quantities are computed within a step, by the beginnings of their names."""
SHOWN_STEPS = 6  # Up to a bad number.
SHOWN_QUANTITIES = ("action", "start/ctrl", "start/qpos", "start/qvel", "end/qvel")
NAN_CAUSES = {
    "start": "The task wrote it: the action, and the physics before it, were finite.",
    "end": "The physics made it: a smaller timestep, softer contacts or smaller gains may help.",
    "observation": "States, actions and rewards before it were finite: `observe` made it.",
    "action": "The observation was finite: the policy made it.",
    "term": "The state was finite: `rewards` made it.",
    "reward": "Its terms were finite: the critic's value at a time-out or an intrinsic reward.",
}
"""What computed a number that is the first one not to be finite, by the kind of its array."""


class RolloutGuard:
    """Checks states, rewards, observations and actions of an environment's rollouts."""

    def __init__(self, env: Env[Any], num_steps: int, dump_to: Path | None) -> None:
        """Have `env` record its states from now on. Without `dump_to`, nothing is dumped."""
        self._env = env
        self._dump_to = dump_to
        self.recorder = env.recorder = StepRecorder(num_steps)
        self.is_finite = torch.ones((), dtype=torch.bool, device=env.device)
        """Whether everything that `check` has looked at is finite."""

    def begin(self) -> None:
        """Start a rollout, which overwrites the recording of the one before."""
        self.recorder.step = 0

    def check(self, storage: RolloutStorage) -> None:
        """Write `is_finite` for the rollout in `storage`. Waits for nothing."""
        # A sum is finite only if all its terms are, and costs a fraction of looking at each.
        sums = [part.sum(dtype=torch.float64) for part in self._checked(self._rollout(storage))]
        torch.all(torch.stack(sums).isfinite(), out=self.is_finite)

    def trouble(self, storage: RolloutStorage, iteration: int) -> tuple[str, str] | None:
        """Dump the worlds with numbers that are not finite.

        Waits for the device once.

        Returns:
            A message about them, and the flag that has such worlds reset from now on, unless the
            policy made the first of the numbers. None if `check` found all finite.
        """
        if self.is_finite:
            return None
        rollout = self._rollout(storage)
        env, checked = self._env, self._checked(rollout)
        finite = [x.isfinite().reshape(len(x), env.num_envs, -1).all(dim=2).all(0) for x in checked]
        ids = torch.stack(finite).all(dim=0).logical_not().nonzero().flatten()
        if not len(ids):
            return None  # Only the sum of huge numbers has overflowed.
        arrays = {
            name: torch.cat([part[:, ids] for part in parts]).cpu().numpy()
            for name, parts in rollout.items()
        }
        terms = arrays.pop("terms")
        arrays |= {f"term/{name}": terms[:, :, i] for i, name in enumerate(env.reward_names)}
        firsts = [first_bad_number(arrays, index) for index in range(len(ids))]
        worlds, first = ids.tolist(), min(firsts)
        text = (
            f"{name_of(env.sim.model, first)} is not finite in {len(ids)} of {env.num_envs} worlds "
            f"({', '.join(map(str, worlds[:5]))}{', ...' if len(ids) > 5 else ''})"
        )
        is_of_task = env.on_nan == "stop" and first.name != "action"
        flag = "--on-nan reset" if is_of_task else ""
        if self._dump_to is None:
            return text, flag
        chosen = sorted(range(len(ids)), key=firsts.__getitem__)[:MAX_WORLDS]
        dump: dict[str, Any] = {name: values[:, chosen] for name, values in arrays.items()}
        dump |= {"worlds": np.array(worlds)[chosen], "iteration": iteration}
        dump |= {"num_envs": env.num_envs, "decimation": env.cfg.decimation}
        try:
            _save(self._dump_to, dump, env.sim.model, [firsts[index] for index in chosen])
        except OSError as error:
            # This error must not hide the trouble, which all ranks report together.
            return f"{text}; no dump of it could be written to {self._dump_to}: {error}", flag
        command = f"mjfleet inspect {shlex.quote(str(self._dump_to))}"
        return f"{text}; `{command}` shows what went bad first", flag

    def largest(self, storage: RolloutStorage) -> tuple[float, str]:
        """Return the largest size of what is learned from in a finite rollout, and its name."""
        sizes = {
            name: torch.cat(parts).abs().flatten(0, 1).amax(dim=0).flatten()
            for name, parts in self._rollout(storage).items()
            if name.startswith(("observation/", "reward"))
        }
        size, name = max((x.max().item(), name) for name, x in sizes.items())
        place = BadNumber(0, 0, name, int(sizes[name].argmax()))
        return size, name_of(self._env.sim.model, place)

    def _checked(self, rollout: dict[str, list[torch.Tensor]]) -> list[torch.Tensor]:
        """Return what has to be finite."""
        # With on_nan="reset", bad states are reset; what is learned from must be finite.
        all_must, learned_from = self._env.on_nan == "stop", ("observation/", "action", "reward")
        names = [name for name in rollout if all_must or name.startswith(learned_from)]
        return [part for name in names for part in rollout[name]]

    def _rollout(self, storage: RolloutStorage) -> dict[str, list[torch.Tensor]]:
        """Return a rollout by name, each tensor `(steps, num_envs, ...)` in one part or two.

        The second part is the row after the last step, of states and observations.
        """
        last: Any = self._env.get_observations()
        observations: Any = storage.observations
        rollout = {name: [values] for name, values in self.recorder.tensors.items()}
        for name, value in self.recorder.now(self._env.sim).items():
            rollout[name].append(value.unsqueeze(0))
        for name, values in observations.items():
            rollout[f"observation/{name}"] = [values, last[name].unsqueeze(0)]
        columns = {"action": storage.actions, "reward": storage.rewards.squeeze(2)}
        columns["done"] = storage.dones.squeeze(2).bool()
        return rollout | {name: [values] for name, values in columns.items()}


class BadNumber(NamedTuple):
    """The first number of a world that is not finite; of two, the smaller came first."""

    step: int
    place: int  # The quantity's place in the order of computation within a step.
    name: str
    component: int


def first_bad_number(arrays: Mapping[str, np.ndarray], index: int) -> BadNumber:
    """Return the first number of a world that is not finite; `index` is its place in the arrays."""
    found = []
    for place, name in enumerate(checked_arrays(arrays)):
        values = arrays[name][:, index].reshape(len(arrays[name]), -1)
        steps, components = np.nonzero(~np.isfinite(values))
        if steps.size:
            found.append(BadNumber(int(steps[0]), place, name, int(components[0])))
    return min(found)


def checked_arrays(names: Collection[str]) -> list[str]:
    """Return the arrays of a dump that must be finite, in the order of their computation."""
    return list(dict.fromkeys(n for start in _ORDER for n in names if n.startswith(start)))


def name_of(model: mujoco.MjModel, bad: BadNumber) -> str:
    """Return array and component of a number, and the joint or actuator that it belongs to."""
    kind, _, field = bad.name.partition("/")
    if kind in ("reward", "term"):
        return bad.name
    name = f"{bad.name}[{bad.component}]"
    owners = {
        "qpos": (model.joint, model.jnt_qposadr),
        "qvel": (model.joint, model.jnt_dofadr),
        "ctrl": (model.actuator, model.actuator_ctrladr),
    }
    if kind not in ("start", "end") or field not in owners:
        return name
    find, first_components = owners[field]
    owner = find(int(np.searchsorted(first_components, bad.component, side="right")) - 1)
    return f"{name} ({find.__name__} {owner.name or owner.id})"


def _save(
    path: Path, arrays: Mapping[str, Any], model: mujoco.MjModel, firsts: Sequence[BadNumber]
) -> None:
    """Write a dump with its explanation, whole or not at all; create its folder if needed.

    `firsts` are the first bad numbers of the worlds, in their order in `arrays`.
    """
    head = f"iteration {arrays['iteration']}: {len(firsts)} of {arrays['num_envs']} worlds"
    found = [_explain(arrays, model, index, bad) for index, bad in enumerate(firsts)]
    text = "\n\n".join([head, *found])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda f: np.savez_compressed(f, **arrays, explanation=text))


def _explain(arrays: Mapping[str, Any], model: mujoco.MjModel, index: int, bad: BadNumber) -> str:
    """Return the first bad number of the world at `index` in a dump, what led up to it, and what
    computed it."""
    world, value = arrays["worlds"][index], arrays[bad.name][bad.step, index].reshape(-1)
    lines = [f"world {world}: {name_of(model, bad)} is {value[bad.component]} in step {bad.step}"]
    steps = range(max(0, bad.step - SHOWN_STEPS + 1), bad.step + 1)
    rows = [("largest |value| in step", [str(step) for step in steps])]
    for name in dict.fromkeys((*SHOWN_QUANTITIES, bad.name)):
        sizes = np.abs(arrays[name][steps[0] : steps[-1] + 1, index])
        rows.append((name, [f"{row.max(initial=0):.4g}" for row in sizes]))
    lines += [f"  {name:<24}" + "".join(f"{x:>12}" for x in cells) for name, cells in rows]
    kind = bad.name.partition("/")[0]
    lines.append(f"  {NAN_CAUSES[kind]}")
    if kind == "end":
        speed = np.abs(_replay(arrays, model, index, bad.step).qvel).max(initial=0)
        lines.append(f"  MuJoCo's own engine ends this step with |qvel| up to {speed:.4g}.")
    return "\n".join(lines)


def _replay(
    arrays: Mapping[str, Any], model: mujoco.MjModel, index: int, step: int
) -> mujoco.MjData:
    """Return the state after the physics of a step, simulated again by MuJoCo's own engine."""
    # Otherwise MuJoCo writes warnings to a file, and resets a world that goes bad.
    mujoco.set_mju_user_warning(lambda message: None)
    model = copy.copy(model)
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
    data = mujoco.MjData(model)
    for name in (name for name in arrays if name.startswith("start/")):
        setattr(data, name.removeprefix("start/"), arrays[name][step, index])
    mujoco.mj_step(model, data, nstep=arrays["decimation"])
    return data
