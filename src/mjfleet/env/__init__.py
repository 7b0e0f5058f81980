"""What task authors compose environments from: `from mjfleet.env import Env, Delay, History`."""

from mjfleet.env.curriculum_levels import Levels, evaluation_levels
from mjfleet.env.environment import NAN, Env, EnvShard
from mjfleet.env.episode_statistics import EpisodeStatistics
from mjfleet.env.helpers import Delay, History, Timer

__all__ = [
    "NAN",
    "Delay",
    "Env",
    "EnvShard",
    "EpisodeStatistics",
    "History",
    "Levels",
    "Timer",
    "evaluation_levels",
]
