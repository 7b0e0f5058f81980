"""What task authors compose environments from: `from mjfleet.env import Env, Delay, History`."""

from mjfleet.env.env_shard import EnvShard
from mjfleet.env.environment import Env
from mjfleet.env.helpers import Delay, History, Levels, Timer, evaluation_levels

__all__ = [
    "Delay",
    "Env",
    "EnvShard",
    "History",
    "Levels",
    "Timer",
    "evaluation_levels",
]
