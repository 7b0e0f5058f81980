"""Environments: the contract a task author fills in, as an rsl_rl VecEnv."""

from mjfleet.env.base import NAN, Env, EpisodeStatistics
from mjfleet.env.parts import Delay, History, Timer, next_levels

__all__ = ["NAN", "Delay", "Env", "EpisodeStatistics", "History", "Timer", "next_levels"]
