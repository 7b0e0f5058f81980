"""Compares environments that have started a rollout from one state. Runs in a worker.

Group relative policy optimisation (Shao et al. 2024, arXiv:2402.03300), for control.
"""

import torch


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
