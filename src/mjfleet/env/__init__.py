"""Environments: the contract a task author fills in, as an rsl_rl VecEnv."""

from mjfleet.env.base import NAN, Env, EpisodeStatistics, Share
from mjfleet.env.parts import Delay, History, Timer, next_levels

__all__ = ["NAN", "Delay", "Env", "EpisodeStatistics", "History", "Share", "Timer", "next_levels"]
