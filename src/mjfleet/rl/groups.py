"""Groups of environments that start a rollout from one state, and are compared. In a worker.

Group relative policy optimisation (Shao et al. 2024, arXiv:2402.03300), for control.
"""

from typing import Any

import torch

from mjfleet.env import Env
from mjfleet.rl.pinned_state import PinnedState


class Groups:
    """Starts rollouts: the environments of a group take the state of the group's first one.

    That is the vine of Schulman et al. (2015, arXiv:1502.05477): the first environment lives on
    from rollout to rollout, and the others leave it at each rollout's start. What the environment
    draws afterwards is the same within a group, see Env, so that only their actions differ.
    """

    def __init__(self, env: Env[Any]) -> None:
        """Note the tensors of `env`, which has just been built: groups are equal in them."""
        self._env = env
        self._first = env.env_ids * env.group_size  # Of each environment's group.
        self._state = [field for name, field in env.sim.state().items() if name != "room"]
        # The tensors are kept as well, so that none takes another's id.
        self._built = {id(tensor): (tensor, tensor._version) for tensor in self._tensors()}

    def start(self) -> None:
        """Copy the states of the simulation, and all that the environment keeps for each world.

        These are the tensors that it has replaced or written since it was built and whose first
        dimension, or else the second, has the size `num_envs`. It waits for no device.
        """
        env, sim = self._env, self._env.sim
        for field in self._state:
            field.copy_(field.index_select(0, self._first))
        sim.forward()
        for tensor in self._tensors():
            sizes = tensor.shape[:2]
            if env.num_envs in sizes and self._has_changed(tensor):
                dim = sizes.index(env.num_envs)
                if tensor.stride(dim):
                    tensor.copy_(tensor.index_select(dim, self._first))

    def _tensors(self) -> list[torch.Tensor]:
        """Return the tensors of the environment, without views of the simulation's."""
        fields = (x for x in vars(self._env.sim).values() if isinstance(x, torch.Tensor))
        owned = {field.untyped_storage().data_ptr() for field in fields}
        found = PinnedState({"env": self._env}).tensors()
        return [tensor for tensor in found if tensor.untyped_storage().data_ptr() not in owned]

    def _has_changed(self, tensor: torch.Tensor) -> bool:
        built = self._built.get(id(tensor))
        # Younger tensors may come from inference mode, in which torch counts no versions.
        return built is None or built[1] != tensor._version


def group_advantages(
    rewards: torch.Tensor, dones: torch.Tensor, group_size: int, gamma: float
) -> torch.Tensor:
    """Return how much better each action turned out than those of its group at the same time.

    Args:
        rewards: of a rollout, `(steps, num_envs)`, float32.
        dones: where an episode ended in this step, `(steps, num_envs)`, bool.
        group_size: environments that are next to each other and started from one state.
        gamma: discount factor of the rewards until the end of the episode, or of the rollout.

    Returns:
        `(steps, num_envs)`, float32: in each step and group with mean 0 and deviation 1 over the
        environments that are in the episode with which they started. 0 for the others.
    """
    returns, later = torch.zeros_like(rewards), torch.zeros_like(rewards[0])
    for step in reversed(range(len(rewards))):
        later = rewards[step] + gamma * later.masked_fill(dones[step], 0.0)
        returns[step] = later
    # Integers: torch has no deterministic sum of floats along a dimension on GPUs.
    ended = dones.long()
    counted = (ended.cumsum(dim=0) == ended).to(returns.dtype).unflatten(1, (-1, group_size))
    number = counted.sum(dim=2, keepdim=True).clamp(min=1.0)
    returns = returns.unflatten(1, (-1, group_size))
    mean = (returns * counted).sum(dim=2, keepdim=True) / number
    errors = (returns - mean) * counted
    std = (errors.square().sum(dim=2, keepdim=True) / number).sqrt()
    return (errors / (std + 1e-8)).flatten(1)
