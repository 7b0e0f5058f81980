"""Finds worlds of a rollout in which a number is not finite, and dumps them. Runs in a worker."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rsl_rl.storage import RolloutStorage

from mjfleet.env import Env
from mjfleet.env.step_recorder import StepRecorder
from mjfleet.nan_dump.dump_file import Bad, first_bad, label, save

MAX_WORLDS = 16
"""How many worlds a dump holds: those that went bad first."""


@dataclass(frozen=True, kw_only=True)
class DumpTo:
    """Where a rank leaves its dump, and what the dump should say it is of."""

    path: Path
    task: str


class RolloutWatch:
    """Watches an environment's rollouts: states, rewards, observations and actions."""

    def __init__(self, env: Env[Any], num_steps: int, dump_to: DumpTo | None) -> None:
        """Have `env` record its states from now on; `dump_to` None: trouble is told, not dumped."""
        self._env = env
        self._dump_to = dump_to
        self._history = env.recorder = StepRecorder(num_steps)

    def begin(self) -> None:
        """A rollout begins; what was recorded before is overwritten."""
        self._history.step = 0

    def trouble(self, storage: RolloutStorage, iteration: int) -> str | None:
        """What in the rollout is not finite, and where its dump is; waits for the device once."""
        watched = self._watched(storage)
        # A sum is finite only if all its terms are, and costs a fraction of looking at each.
        sums = torch.stack([values.sum(dtype=torch.float64) for values in watched])
        if sums.isfinite().all():
            return None
        ids = self._bad_worlds(watched).nonzero().flatten()
        if not len(ids):
            return None  # Huge numbers.
        arrays = self._arrays(storage, ids)
        firsts = [first_bad(arrays, place) for place in range(len(ids))]
        worlds = ids.tolist()
        text = (
            f"{label(min(firsts).name)} is not finite in {len(ids)} of {self._env.num_envs} worlds "
            f"({', '.join(map(str, worlds[:5]))}{', ...' if len(ids) > 5 else ''})"
        )
        if self._dump_to is None:
            return text
        return f"{text}; {self._dump(arrays, worlds, firsts, iteration)}"

    def _watched(self, storage: RolloutStorage) -> list[torch.Tensor]:
        """All that must be finite, each `(steps, num_envs, ...)`."""
        env = self._env
        last = env.get_observations()
        groups = list(last.keys())
        over_steps = [storage.actions, storage.rewards]
        over_steps += [storage.observations.get(group) for group in groups]
        now = [last.get(group) for group in groups]
        # Where worlds are reset because of such numbers, states tell of what has been dealt with;
        # what is learned from must be clean, and actions come from the policy alone.
        if env.on_nan == "stop":
            over_steps += self._history.tensors.values()
            now += self._history.now(env.sim).values()
        return [*over_steps, *(values.unsqueeze(0) for values in now)]

    def _bad_worlds(self, watched: list[torch.Tensor]) -> torch.Tensor:
        """A mask `(num_envs,)`, bool."""
        bad = torch.zeros(self._env.num_envs, dtype=torch.bool, device=self._env.device)
        for values in watched:
            finite = values.isfinite().reshape(len(values), self._env.num_envs, -1)
            bad |= finite.all(dim=2).all(dim=0).logical_not_()
        return bad

    def _arrays(self, storage: RolloutStorage, worlds: torch.Tensor) -> dict[str, np.ndarray]:
        """What a dump holds of these worlds; see mjfleet.nan_dump.dump_file."""
        states = dict(self._history.tensors)
        terms = states.pop("terms")
        last = self._env.get_observations()
        extended = {
            name: (states[name], live) for name, live in self._history.now(self._env.sim).items()
        } | {
            f"observation/{name}": (storage.observations.get(name), last.get(name))
            for name in last.keys()  # noqa: SIM118  # Iterating over a TensorDict goes along its batch.
        }
        tensors = states | {
            name: torch.cat((steps, live.unsqueeze(0))) for name, (steps, live) in extended.items()
        }
        tensors |= {f"term/{n}": terms[:, :, i] for i, n in enumerate(self._env.reward_names)}
        tensors |= {
            "action": storage.actions,
            "reward": storage.rewards.squeeze(2),
            "done": storage.dones.squeeze(2).bool(),
        }
        return {name: value[:, worlds].cpu().numpy() for name, value in tensors.items()}

    def _dump(
        self, arrays: dict[str, np.ndarray], worlds: list[int], firsts: list[Bad], iteration: int
    ) -> str:
        """Write the dump; returns where it is, or why there is none."""
        assert self._dump_to is not None
        path, env = self._dump_to.path, self._env
        chosen = sorted(range(len(worlds)), key=firsts.__getitem__)[:MAX_WORLDS]
        facts = {
            "worlds": [worlds[place] for place in chosen],
            "num_envs": env.num_envs,
            "iteration": iteration,
            "decimation": env.cfg.decimation,
            "task": self._dump_to.task,
        }
        few = {name: values[:, chosen] for name, values in arrays.items()}
        try:
            save(path, env.sim.model, few | {name: np.array(v) for name, v in facts.items()})
        except Exception as error:
            # Whatever keeps a dump from being written must not hide why there should be one, nor
            # keep this rank from ending together with the others.
            return f"no dump of it could be written to {path}: {error}"
        return f"`mjfleet inspect {shlex.quote(str(path))}` shows what went bad first"
