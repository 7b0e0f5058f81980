"""Checks each rollout for numbers that are not finite, and dumps their worlds. Runs in a worker."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rsl_rl.storage import RolloutStorage

from mjfleet.env import Env
from mjfleet.env.step_recorder import StepRecorder
from mjfleet.nan_dump.dump_file import first_bad_number, label, save

MAX_WORLDS = 16
"""Worlds in a dump: those that went bad first."""


@dataclass(frozen=True, kw_only=True)
class DumpTo:
    """Where a rank writes its dump, and the task's name for its content."""

    path: Path
    task: str


class RolloutGuard:
    """Checks states, rewards, observations and actions of an environment's rollouts."""

    def __init__(self, env: Env[Any], num_steps: int, dump_to: DumpTo | None) -> None:
        """Have `env` record its states from now on. Without `dump_to`, nothing is dumped."""
        self._env = env
        self._dump_to = dump_to
        self._recorder = env.recorder = StepRecorder(num_steps)

    def begin(self) -> None:
        """Start a rollout, which overwrites the recording of the one before."""
        self._recorder.step = 0

    def trouble(self, storage: RolloutStorage, iteration: int) -> str | None:
        """Dump the worlds with numbers that are not finite, and return a message about them.

        None if all are finite. Waits for the device once.
        """
        checked = self._checked_tensors(storage)
        # A sum is finite only if all its terms are, and costs a fraction of looking at each.
        sums = torch.stack([values.sum(dtype=torch.float64) for values in checked])
        if sums.isfinite().all():
            return None
        num_envs = self._env.num_envs
        finite = [x.isfinite().reshape(len(x), num_envs, -1).all(dim=2).all(dim=0) for x in checked]
        ids = torch.stack(finite).all(dim=0).logical_not().nonzero().flatten()
        if not len(ids):
            return None  # Only the sum of huge numbers has overflowed.
        arrays = self._arrays(storage, ids)
        firsts = [first_bad_number(arrays, index) for index in range(len(ids))]
        worlds = ids.tolist()
        text = (
            f"{label(min(firsts).name)} is not finite in {len(ids)} of {num_envs} worlds "
            f"({', '.join(map(str, worlds[:5]))}{', ...' if len(ids) > 5 else ''})"
        )
        if self._dump_to is None:
            return text
        chosen = sorted(range(len(ids)), key=firsts.__getitem__)[:MAX_WORLDS]
        few = {name: values[:, chosen] for name, values in arrays.items()}
        few["worlds"] = np.array([worlds[index] for index in chosen])
        return f"{text}; {self._dump(self._dump_to, few, iteration)}"

    def _checked_tensors(self, storage: RolloutStorage) -> list[torch.Tensor]:
        """Return all that must be finite, each `(steps, num_envs, ...)`."""
        last: Any = self._env.get_observations()
        observations: Any = storage.observations
        over_steps = [storage.actions, storage.rewards, *observations.values()]
        now = list(last.values())
        # With on_nan="reset", bad states are reset; what is learned from must be finite.
        if self._env.on_nan == "stop":
            over_steps += self._recorder.tensors.values()
            now += self._recorder.now(self._env.sim).values()
        return [*over_steps, *(values.unsqueeze(0) for values in now)]

    def _arrays(self, storage: RolloutStorage, worlds: torch.Tensor) -> dict[str, np.ndarray]:
        """Return a dump's arrays for these worlds, by the names that dump_file.py lists."""
        env = self._env
        tensors: dict[str, Any] = dict(self._recorder.tensors)
        terms = tensors.pop("terms")
        observations: Any = storage.observations
        tensors |= {f"observation/{name}": values for name, values in observations.items()}
        # States and observations have a row more than the rollout has steps.
        last: Any = env.get_observations()
        rows = {f"observation/{name}": value for name, value in last.items()}
        for name, value in (rows | self._recorder.now(env.sim)).items():
            tensors[name] = torch.cat((tensors[name], value.unsqueeze(0)))
        tensors |= {f"term/{name}": terms[:, :, i] for i, name in enumerate(env.reward_names)}
        tensors["action"] = storage.actions
        tensors["reward"] = storage.rewards.squeeze(2)
        tensors["done"] = storage.dones.squeeze(2).bool()
        return {name: value[:, worlds].cpu().numpy() for name, value in tensors.items()}

    def _dump(self, to: DumpTo, arrays: dict[str, np.ndarray], iteration: int) -> str:
        """Write the dump; return the command that explains it, or why it could not be written."""
        facts = {
            "num_envs": self._env.num_envs,
            "iteration": iteration,
            "decimation": self._env.cfg.decimation,
            "task": to.task,
        }
        arrays = arrays | {name: np.array(value) for name, value in facts.items()}
        try:
            save(to.path, self._env.sim.model, arrays)
        except Exception as error:
            # This error must not hide the trouble, which all ranks report together.
            return f"no dump of it could be written to {to.path}: {error}"
        return f"`mjfleet inspect {shlex.quote(str(to.path))}` shows what went bad first"
