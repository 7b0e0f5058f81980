"""Configuration: frozen dataclasses of the standard library, safe to import in any process.

Task folders import from here: `from mjfleet.config import AgentConfig, EnvConfig, Task`.
"""

from mjfleet.config.agent_config import (
    ActorConfig,
    AgentConfig,
    CnnConfig,
    CriticConfig,
    DistributionConfig,
    ObsGroups,
    TeacherConfig,
    WandbConfig,
)
from mjfleet.config.algorithm_config import AlgorithmConfig, PPOConfig, RndConfig, SymmetryConfig
from mjfleet.config.dict_conversion import by_dotted_name, from_dict, to_dict
from mjfleet.config.launch_config import LaunchConfig
from mjfleet.config.sac_config import SACConfig
from mjfleet.config.sampling_config import SamplingConfig
from mjfleet.config.train_config import EnvConfig, Task, TrainConfig

__all__ = [
    "ActorConfig", "AgentConfig", "AlgorithmConfig", "CnnConfig", "CriticConfig",
    "DistributionConfig", "EnvConfig", "LaunchConfig", "ObsGroups", "PPOConfig", "RndConfig",
    "SACConfig", "SamplingConfig", "SymmetryConfig", "Task", "TeacherConfig", "TrainConfig",
    "WandbConfig", "by_dotted_name", "from_dict", "to_dict",
]  # fmt: skip
