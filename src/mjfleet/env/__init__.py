"""What task authors compose environments from: `from mjfleet.env import Env, Delay, History`."""

from mjfleet.env.curriculum_levels import Levels, evaluation_levels
from mjfleet.env.delay import Delay
from mjfleet.env.environment import NAN, Env, EnvShard
from mjfleet.env.episode_statistics import EpisodeStatistics
from mjfleet.env.history import History
from mjfleet.env.interval_timer import Timer

Env.helper_types += (Delay, History, Levels, Timer)

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
