"""`Run.policy`: a trained policy as a function."""

from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict

from mjfleet.errors import UserError
from mjfleet.rl.networks import image_dtypes
from mjfleet.tools.trained_policy import find_policy, load_policy


class Policy:
    """A policy: call it with observations, it returns mean actions.

    Attributes:
        module: the network, a torch module with its normaliser.
        device: where it is.
    """

    def __init__(self, run: str, device: str) -> None:
        """Read the policy of a run or a checkpoint; UserError if torch has no such device."""
        try:
            place = torch.device(device)
            torch.empty(0, device=place)
        # A torch without CUDA raises AssertionError.
        except (RuntimeError, TypeError, AssertionError) as error:
            reason = str(error).partition("\n")[0]
            raise UserError(f"device is {device!r}, and torch says: {reason}") from None
        found, config, trained = find_policy(run, Path("logs"))
        env, policy, _ = load_policy(found, config.with_num_envs(1), trained.policy)
        self.module, self.device = policy.to(place), place
        self._types = dict.fromkeys(policy.obs_groups, torch.float32) | image_dtypes(policy)
        self._shapes = {name: env.get_observations()[name].shape[1:] for name in self._types}

    @torch.inference_mode()
    def __call__(self, observations: Any) -> torch.Tensor:
        """Return actions `(num_envs, num_actions)`, float32.

        Args:
            observations: groups as an environment returns them, `(num_envs, size)` each, or
                images: a TensorDict, or a mapping of tensors or arrays.

        Raises:
            KeyError: a group that the policy observes is missing.
            UserError: a group has another size than in training.
        """
        tensors = {
            name: torch.as_tensor(observations[name], dtype=dtype, device=self.device)
            for name, dtype in self._types.items()
        }
        for name, tensor in tensors.items():
            shape = "num_envs", *self._shapes[name]
            if tensor.shape[1:] != self._shapes[name] or tensor.ndim < len(shape):
                must = f"({', '.join(map(str, shape))})"
                raise UserError(f"`{name}` is {tuple(tensor.shape)}; it must be {must}.")
        size = len(next(iter(tensors.values())))
        return self.module(TensorDict(tensors, batch_size=[size]))
