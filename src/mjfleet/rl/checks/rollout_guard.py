"""Checks each rollout for numbers that are not finite. Runs in a worker."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mjfleet.env import Env
from mjfleet.env.step_recorder import StepRecorder

Rollout = Mapping[str, list[torch.Tensor]]
"""Tensors `(steps, num_envs, ...)` by name, each in parts."""
Learned = Callable[[], Rollout]
"""Returns what is learned from, see Learner.checked."""


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

    def check(self, learned: Learned) -> None:
        """Write `is_finite` for what `learned` returns. Waits for nothing."""
        # A sum is finite only if all its terms are, and costs a fraction of looking at each.
        sums = [part.sum(dtype=torch.float64) for part in self._checked(self._rollout(learned))]
        torch.all(torch.stack(sums).isfinite(), out=self.is_finite)

    def trouble(self, learned: Learned, iteration: int) -> tuple[str, str] | None:
        """Explain the numbers that are not finite, and dump their worlds: see nan_dump.explain.

        Waits for the device once. None if `check` found all finite.
        """
        if self.is_finite:
            return None
        rollout = self._rollout(learned)
        env, checked = self._env, self._checked(rollout)
        finite = [x.isfinite().reshape(len(x), env.num_envs, -1).all(dim=2).all(0) for x in checked]
        ids = torch.stack(finite).all(dim=0).logical_not().nonzero().flatten()
        if not len(ids):
            return None  # Only the sum of huge numbers has overflowed.
        arrays = {
            name: torch.cat([part[:, ids] for part in parts]).cpu().numpy()
            for name, parts in rollout.items()
        }
        worlds = ids.tolist()
        try:
            from mjfleet.nan_dump.explain import explain
        except ModuleNotFoundError:  # An installation may lack this part.
            bad = [n for n, x in arrays.items() if n != "done" and not np.isfinite(x).all()]
            return f"{', '.join(bad)}: not finite in {len(ids)} of {env.num_envs} worlds", ""
        return explain(env, arrays, worlds, iteration, self._dump_to)

    def largest(self, learned: Learned) -> tuple[float, str]:
        """Return the largest size of what is learned from in a finite rollout, and its name."""
        sizes = {
            name: torch.cat(parts).abs().flatten(0, 1).amax(dim=0).flatten()
            for name, parts in self._rollout(learned).items()
            if name.startswith(("observation/", "reward")) and parts[0].is_floating_point()
        }
        size, name = max((x.max().item(), name) for name, x in sizes.items())
        return size, name if name == "reward" else f"{name}[{int(sizes[name].argmax())}]"

    def _checked(self, rollout: Rollout) -> list[torch.Tensor]:
        """Return what has to be finite."""
        # With on_nan="reset", bad states are reset; what is learned from must be finite.
        all_must, learned_from = self._env.on_nan == "stop", ("observation/", "action", "reward")
        names = [name for name in rollout if all_must or name.startswith(learned_from)]
        parts = (part for name in names for part in rollout[name])
        return [part for part in parts if part.dtype != torch.uint8]  # Bytes always are.

    def _rollout(self, learned: Learned) -> dict[str, list[torch.Tensor]]:
        """Return a rollout by name, each tensor `(steps, num_envs, ...)` in one part or two.

        The second part is the row after the last step, of states and observations.
        """
        rollout = {name: [values] for name, values in self.recorder.tensors.items()}
        for name, value in self.recorder.now(self._env.sim).items():
            rollout[name].append(value.unsqueeze(0))
        return rollout | dict(learned())
