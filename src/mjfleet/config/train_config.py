"""A run's configuration: the environment's numbers and the launch flags; and a task's entry."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Annotated

from mjfleet.config.agent_config import AgentConfig
from mjfleet.config.field_kinds import Kind, leaves
from mjfleet.config.launch_config import LaunchConfig
from mjfleet.config.sac_config import SACConfig
from mjfleet.config.validation import (
    SHOWN_CHARS,
    Checked,
    Count,
    OptionalCount,
    Seconds,
    is_class_path,
)
from mjfleet.errors import UserError

ALGORITHM = "agent.algorithm.name"
"""The field that decides which fields `agent.algorithm` has."""


@dataclass(frozen=True, kw_only=True)
class EnvConfig(Checked, flags="env."):
    """The environment. A task's own configuration is a subclass that adds its fields."""

    num_envs: Count = 1024
    """Environments per worker; `mjfleet tune` measures which number trains fastest."""
    decimation: Count = 1
    """Physics steps per environment step; the action is held meanwhile."""
    episode_seconds: Seconds = 20.0
    """Simulated seconds after which an episode times out."""
    nconmax: Annotated[OptionalCount, Kind.OPERATION] = None
    """Contacts per environment that warp has room for at first; None: measured in a short run."""
    njmax: Annotated[OptionalCount, Kind.OPERATION] = None
    """Constraint rows per environment that warp has room for at first; None: measured in a short
    run."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(LaunchConfig):
    """Everything that determines a training run."""

    env: EnvConfig = field(default_factory=EnvConfig)
    """The task's environment."""
    agent: AgentConfig = field(default_factory=AgentConfig)
    """The learning agent."""

    def check_rollouts(self) -> None:
        """Raise UserError if a worker's rollouts cannot be learned from; they can be played."""
        agent = self.agent
        # Recurrent networks learn from whole trajectories: a minibatch is some environments'.
        sizes = self.env.num_envs, agent.num_steps_per_env, agent.is_recurrent
        agent.algorithm.check_rollouts(*sizes)

    def with_num_envs(self, num_envs: int) -> "TrainConfig":
        return replace(self, env=replace(self.env, num_envs=num_envs))


@cache
def field_kinds() -> Mapping[str, Kind | None]:
    """Return the kind of each field that all tasks have, by dotted name."""
    return {leaf.name: leaf.kind for leaf in leaves(TrainConfig)}


@cache
def _kinds_of_algorithms() -> Mapping[str, Kind | None]:
    return {leaf.name: leaf.kind for leaf in leaves(SACConfig, prefix="agent.algorithm.")}


def kind_of(name: str) -> Kind | None:
    """Return the kind of a field, also one of a task or of an algorithm."""
    return field_kinds().get(name) or _kinds_of_algorithms().get(name)


def decides_learning(name: str) -> bool:
    """Return whether a field, also one of a task, decides what is learned."""
    return kind_of(name) in (None, Kind.SOURCE, Kind.CODE)


def continues_in_place(name: str) -> bool:
    """Return whether a resumed run stays the same run if the value of this field differs."""
    return kind_of(name) in (Kind.PLACEMENT, Kind.OPERATION)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task as config.py lists it under TASKS: its environment and defaults."""

    summary: str
    """One line for lists and help."""
    env: EnvConfig
    """Defaults of the environment; the fields of its class are the task's flags."""
    env_class: str
    """`module:Class` of the environment within the task folder, e.g. `env:CartpoleEnv`."""
    agent: AgentConfig = field(default_factory=AgentConfig)
    """Defaults of the agent."""
    num_actions: int | None = None
    """Size of an action, for lists; checked when the environment is built."""
    observation_sizes: Mapping[str, int | tuple[int, ...]] | None = None
    """Size of each observation group, or (channels, height, width) of an image, for lists; checked
    when the environment is built."""
    packages: tuple[str, ...] = ()
    """Packages that must be installed, such as the one that holds the model."""
    extra: str = ""
    """The optional dependency of mjfleet that installs them."""

    def __post_init__(self) -> None:
        for name, (kind, must) in {
            "summary": (str, "text"),
            "env": (EnvConfig, "an EnvConfig(...)"),
            "env_class": (str, "text, `module:Class`"),
            "agent": (AgentConfig, "an AgentConfig(...)"),
            "num_actions": (int | None, "an integer, or None"),
            "observation_sizes": (Mapping | None, "a dict of sizes by group, or None"),
            "packages": (tuple | list, "a tuple of names, such as ('numpy',)"),
            "extra": (str, "text"),
        }.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or (name == "env_class" and not is_class_path(value)):
                shown = f"{value!r:.{SHOWN_CHARS}}"
                raise UserError(f"Task: `{name}` is {shown}; it must be {must}.")
