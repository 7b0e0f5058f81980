"""Environments: the contract a task author fills in, as an rsl_rl VecEnv."""

from mjfleet.env.components import Delay, History, Timer, next_levels
from mjfleet.env.environment import NAN, Env, EnvShard, EpisodeStatistics

__all__ = [
    "NAN",
    "Delay",
    "Env",
    "EnvShard",
    "EpisodeStatistics",
    "History",
    "Timer",
    "next_levels",
]
