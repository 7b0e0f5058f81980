"""Saves how episodes began and what they were told, for an exported run_policy.py to repeat."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from mjfleet.env import Env
from mjfleet.env.step_recorder import STATE
from mjfleet.utils.atomic_write import write_atomically

MODEL = "model "  # Marks fields of the model, which differ among worlds.


class SavedEpisodes:
    """The first episode of each world: its start, its model, and its commands in each step."""

    def __init__(self, env: Env[Any]) -> None:
        """Copy the state from which the next episodes start."""
        self._env, self._commands = env, list[torch.Tensor]()
        of_model = {k: v for k, v in env.sim.state().items() if k.startswith(MODEL)}
        fields = {name: getattr(env.sim, name) for name in STATE} | of_model
        self._fields = {k: v.to("cpu", copy=True) for k, v in fields.items() if v.numel()}

    def take(self) -> None:
        """Copy the commands that the policy observes in the next step."""
        commands = [value for value, _, _ in self._env.commands().values()]
        none = torch.zeros(self._env.num_envs, 0)
        now = torch.stack([value.cpu() for value in commands], dim=1) if commands else none
        self._commands.append(now)

    def write(self, path: Path) -> None:
        """Write a NumPy file of named arrays.

        Raises:
            OSError: it cannot be written.
        """
        arrays: dict[str, Any] = {name: field.numpy() for name, field in self._fields.items()}
        arrays["commands"] = torch.stack(self._commands).numpy()
        arrays["steps"] = np.array(self._env.max_episode_length)
        write_atomically(path, lambda file: np.savez_compressed(file, **arrays))
