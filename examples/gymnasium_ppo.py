"""PPO in one file, in the way of CleanRL, on any task as a gymnasium.vector.VectorEnv.

    python examples/gymnasium_ppo.py cartpole-balance --steps 200000

It shows what an algorithm of one's own has to heed; `train` is faster and does more. The algorithm:
Schulman et al. 2017, arXiv:1707.06347; its details: Huang et al. 2022, "The 37 Implementation
Details of Proximal Policy Optimization".
"""

import argparse
from collections import deque

import mjfleet.gym  # isort: skip  # Before torch, whose threads then sleep while they wait.
import numpy as np
import torch
from gymnasium.spaces import Box
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch import nn
from torch.distributions import Normal

GAMMA, LAMBDA, CLIP, EPOCHS, MINIBATCHES, LEARNING_RATE = 0.95, 0.95, 0.2, 8, 4, 1e-3


def network(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    """Return two hidden layers of 64, whose last layer starts with weights of size `gain`."""
    last = nn.Linear(64, outputs)
    nn.init.orthogonal_(last.weight, gain)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), last)


class Agent(nn.Module):
    """Policy and value function, over observations with running mean and variance."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.actor, self.critic = network(inputs, actions, 0.01), network(inputs, 1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(actions))
        self.mean, self.variance, self.count = torch.zeros(inputs), torch.ones(inputs), 1e-4

    def normalize(self, observations: np.ndarray, learn: bool = False) -> torch.Tensor:
        """Return observations of about 1; with `learn`, count them in (Welford 1962)."""
        values = torch.from_numpy(observations)
        if learn:
            shift, self.count = values.mean(0) - self.mean, self.count + len(values)
            share = len(values) / self.count
            self.mean = self.mean + share * shift
            spread = values.var(0, correction=0) + (1 - share) * shift.square()
            self.variance = (1 - share) * self.variance + share * spread
        return ((values - self.mean) / (self.variance + 1e-8).sqrt()).clamp(-10, 10)

    def policy(self, observations: torch.Tensor) -> Normal:
        return Normal(self.actor(observations), self.log_std.exp())

    def value(self, observations: torch.Tensor) -> torch.Tensor:
        return self.critic(observations).squeeze(-1)


def train(task: str, num_envs: int, rollout: int, steps: int, seed: int) -> None:
    """Train, and print the mean return of the newest episodes after each update."""
    torch.manual_seed(seed)
    envs = RecordEpisodeStatistics(mjfleet.gym.make_vector(task, num_envs=num_envs))
    first, _ = envs.reset(seed=seed)
    assert isinstance(envs.single_action_space, Box)
    low, high = envs.single_action_space.low, envs.single_action_space.high
    size, actions = first.shape[1], len(low)
    agent, returns = Agent(size, actions), deque[float](maxlen=100)
    optimizer = torch.optim.Adam(agent.parameters(), LEARNING_RATE, eps=1e-5)
    observations = agent.normalize(first, learn=True)
    for update in range(1, 1 + steps // (num_envs * rollout)):
        seen, taken = torch.zeros(rollout, num_envs, size), torch.zeros(rollout, num_envs, actions)
        log_probs, rewards, values = torch.zeros(3, rollout, num_envs)
        next_values, ends = torch.zeros(2, rollout, num_envs)
        for t in range(rollout):
            with torch.no_grad():
                policy = agent.policy(observations)
                action = policy.sample()
                seen[t], taken[t] = observations, action
                log_probs[t], values[t] = policy.log_prob(action).sum(-1), agent.value(observations)
            news = envs.step(np.clip(action.numpy(), low, high))
            raw, reward, terminations, truncations, infos = news
            observations, done = agent.normalize(raw, learn=True), terminations | truncations
            # An episode that ends is followed by the next in the same step, so what a time-out
            # is worth follows from the final observation. A failure is worth nothing.
            following = observations.clone()
            if done.any():
                last = np.stack(infos["final_obs"][done])
                following[torch.from_numpy(done)] = agent.normalize(last)
                returns.extend(infos["episode"]["r"][done])
            with torch.no_grad():
                next_values[t] = agent.value(following) * torch.from_numpy(~terminations)
            rewards[t], ends[t] = torch.from_numpy(reward), torch.from_numpy(done)
        advantages, advantage = torch.zeros_like(rewards), torch.zeros(num_envs)
        for t in reversed(range(rollout)):
            error = rewards[t] + GAMMA * next_values[t] - values[t]
            advantage = error + GAMMA * LAMBDA * (1 - ends[t]) * advantage
            advantages[t] = advantage
        batch = [x.flatten(0, 1) for x in (seen, taken, log_probs, advantages, advantages + values)]
        for _ in range(EPOCHS):
            for rows in torch.randperm(num_envs * rollout).chunk(MINIBATCHES):
                learn(agent, optimizer, *(x[rows] for x in batch))
        mean = f"{np.mean(returns):.1f}" if returns else "-"
        print(f"steps={update * num_envs * rollout} return={mean}", flush=True)
    envs.close()


def learn(
    agent: Agent,
    optimizer: torch.optim.Optimizer,
    seen: torch.Tensor,
    taken: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    targets: torch.Tensor,
) -> None:
    """Take a step of PPO's clipped objective."""
    ratio = (agent.policy(seen).log_prob(taken).sum(-1) - log_probs).exp()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    gain = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    loss = (agent.value(seen) - targets).square().mean() - gain.mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
    optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--rollout", type=int, default=32, help="steps of each environment")
    parser.add_argument("--steps", type=int, default=500_000, help="of all environments together")
    parser.add_argument("--seed", type=int, default=1)
    train(**vars(parser.parse_args()))
