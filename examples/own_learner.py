"""Learns by a method of its own in an environment of mjfleet's: no runner, no PPO.

Augmented random search (Mania et al., 2018): perturbs the weights of a linear policy, and moves
them towards the perturbations with the larger return. All are tried at once, one per environment.

uv run python examples/own_learner.py [updates]
"""

import sys

import mjfleet  # isort: skip  # Before torch, whose threads then sleep while they wait.
import torch

PAIRS, BEST, STEP, NOISE, LENGTH = 128, 32, 0.5, 0.5, 100
updates = int(sys.argv[1]) if len(sys.argv) > 1 else 15
torch.manual_seed(1)


def returns_of(env: mjfleet.Env, weights: torch.Tensor) -> torch.Tensor:
    """Play one policy per environment from a reset; return the sums of rewards `(num_envs,)`.

    weights: `(num_envs, observations, actions)`.
    """
    env.reset()
    total = torch.zeros(env.num_envs, device=env.device)
    for _ in range(LENGTH):
        observed = env.get_observations()["actor"]
        actions = torch.einsum("no,noa->na", observed, weights)
        _, rewards, _, _ = env.step(actions)
        total += rewards
    return total


with mjfleet.make("cartpole-balance", num_envs=2 * PAIRS) as env:
    size = env.get_observations()["actor"].shape[1]
    weights = torch.zeros(size, env.num_actions, device=env.device)
    for update in range(1, updates + 1):
        noise = torch.randn(PAIRS, *weights.shape, device=env.device)
        tried = weights + NOISE * torch.cat((noise, -noise))
        plus, minus = returns_of(env, tried).split(PAIRS)
        best = torch.maximum(plus, minus).topk(BEST).indices
        spread = torch.cat((plus[best], minus[best])).std()
        gain = (plus - minus)[best] / (spread + 1e-6)
        weights += STEP / BEST * torch.einsum("n,noa->oa", gain, noise[best])
        reached = returns_of(env, weights.expand(env.num_envs, -1, -1)).mean() / LENGTH
        print(f"update {update}: mean reward {reached:.3f} of 1")
