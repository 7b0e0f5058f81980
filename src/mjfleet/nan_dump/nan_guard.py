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
from mjfleet.nan_dump.dump_file import BadNumber, first_bad_number, label, save

MAX_WORLDS = 16
"""Worlds in a dump: those that went bad first."""


@dataclass(frozen=True, kw_only=True)
class DumpTo:
    """Where a rank writes its dump, and the task's name, which the dump holds."""

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
        ids = self._bad_worlds(checked).nonzero().flatten()
        if not len(ids):
            return None  # Only the sum of huge numbers has overflowed.
        arrays = self._arrays(storage, ids)
        firsts = [first_bad_number(arrays, index) for index in range(len(ids))]
        worlds = ids.tolist()
        text = (
            f"{label(min(firsts).name)} is not finite in {len(ids)} of {self._env.num_envs} worlds "
            f"({', '.join(map(str, worlds[:5]))}{', ...' if len(ids) > 5 else ''})"
        )
        if self._dump_to is None:
            return text
        return f"{text}; {self._dump(self._dump_to, arrays, worlds, firsts, iteration)}"

    def _checked_tensors(self, storage: RolloutStorage) -> list[torch.Tensor]:
        """Return all that must be finite, each `(steps, num_envs, ...)`."""
        last: Any = self._env.get_observations()
        seen: Any = storage.observations
        over_steps = [storage.actions, storage.rewards, *seen.values()]
        now = list(last.values())
        # With on_nan="reset", bad states have been dealt with; what is learned from must be finite.
        if self._env.on_nan == "stop":
            over_steps += self._recorder.tensors.values()
            now += self._recorder.now(self._env.sim).values()
        return [*over_steps, *(values.unsqueeze(0) for values in now)]

    def _bad_worlds(self, checked: list[torch.Tensor]) -> torch.Tensor:
        """Return a mask of the worlds with numbers that are not finite, `(num_envs,)`, bool."""
        bad = torch.zeros(self._env.num_envs, dtype=torch.bool, device=self._env.device)
        for values in checked:
            finite = values.isfinite().reshape(len(values), self._env.num_envs, -1)
            bad |= finite.all(dim=2).all(dim=0).logical_not_()
        return bad

    def _arrays(self, storage: RolloutStorage, worlds: torch.Tensor) -> dict[str, np.ndarray]:
        """Return a dump's arrays for these worlds, by the names that dump_file.py lists."""
        env = self._env
        tensors: dict[str, Any] = dict(self._recorder.tensors)
        terms = tensors.pop("terms")
        # States and observations have a row more than the rollout has steps.
        seen: Any = storage.observations
        tensors |= {f"observation/{name}": values for name, values in seen.items()}
        newest: Any = env.get_observations()
        newest = {f"observation/{name}": value for name, value in newest.items()}
        for name, value in (newest | self._recorder.now(env.sim)).items():
            tensors[name] = torch.cat((tensors[name], value.unsqueeze(0)))
        tensors |= {f"term/{name}": terms[:, :, i] for i, name in enumerate(env.reward_names)}
        tensors["action"] = storage.actions
        tensors["reward"] = storage.rewards.squeeze(2)
        tensors["done"] = storage.dones.squeeze(2).bool()
        return {name: value[:, worlds].cpu().numpy() for name, value in tensors.items()}

    def _dump(
        self,
        to: DumpTo,
        arrays: dict[str, np.ndarray],
        worlds: list[int],
        firsts: list[BadNumber],
        iteration: int,
    ) -> str:
        """Write the dump; return the command that explains it, or why it could not be written."""
        chosen = sorted(range(len(worlds)), key=firsts.__getitem__)[:MAX_WORLDS]
        facts = {
            "worlds": [worlds[index] for index in chosen],
            "num_envs": self._env.num_envs,
            "iteration": iteration,
            "decimation": self._env.cfg.decimation,
            "task": to.task,
        }
        few = {name: values[:, chosen] for name, values in arrays.items()}
        few |= {name: np.array(value) for name, value in facts.items()}
        try:
            save(to.path, self._env.sim.model, few)
        except Exception as error:
            # This must not hide what is to be dumped, nor keep this rank from ending as others do.
            return f"no dump of it could be written to {to.path}: {error}"
        return f"`mjfleet inspect {shlex.quote(str(to.path))}` shows what went bad first"
