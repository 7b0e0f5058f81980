"""Environments: the contract a task author fills in, as an rsl_rl VecEnv."""

from mjfleet.env.base import NAN, Env, EpisodeStatistics

__all__ = ["NAN", "Env", "EpisodeStatistics"]
