"""What task authors compose environments from: `from mjfleet.env import Env, Delay, History`."""

from mjfleet.env.delay_and_history import Delay, History
from mjfleet.env.env_shard import EnvShard
from mjfleet.env.environment import Env
from mjfleet.env.levels import Levels, evaluation_levels
from mjfleet.env.timer import Timer

__all__ = ["Delay", "Env", "EnvShard", "History", "Levels", "Timer", "evaluation_levels"]
