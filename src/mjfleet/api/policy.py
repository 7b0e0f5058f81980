"""`Run.policy`: a trained policy as a function."""

from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict

from mjfleet.rl.networks import image_dtypes
from mjfleet.tools.trained_policy import find_policy, load_policy


class Policy:
    """A policy: call it with observations, it returns mean actions.

    Attributes:
        module: the network, a torch module with its normaliser.
        device: where it is.
    """

    def __init__(self, run: str, device: str) -> None:
        """Read the policy of a run directory or a checkpoint."""
        found, config, trained = find_policy(run, Path("logs"))
        _, policy, _ = load_policy(found, config.with_num_envs(1), trained.policy)
        self.module, self.device = policy.to(device), torch.device(device)

    @torch.inference_mode()
    def __call__(self, observations: Any) -> torch.Tensor:
        """Return actions `(num_envs, num_actions)`, float32.

        Args:
            observations: groups as an environment returns them, `(num_envs, size)` each, or
                images: a TensorDict, or a mapping of tensors or arrays.

        Raises:
            KeyError: a group that the policy observes is missing.
        """
        types = dict.fromkeys(self.module.obs_groups, torch.float32) | image_dtypes(self.module)
        tensors = {
            name: torch.as_tensor(observations[name], dtype=dtype, device=self.device)
            for name, dtype in types.items()
        }
        size = len(next(iter(tensors.values())))
        return self.module(TensorDict(tensors, batch_size=[size]))
