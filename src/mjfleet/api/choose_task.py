"""From a task's name, or an environment class, and changes: a task and its configuration."""

import os
import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import Enum
from numbers import Number
from pathlib import Path
from typing import Any

from mjfleet.api.task_by_value import ENV, ClassTask, config_class, with_whole_path
from mjfleet.cli.flag_table import as_flag
from mjfleet.cli.train import settle
from mjfleet.config import AgentConfig, Task, TrainConfig, by_dotted_name, from_dict, to_dict
from mjfleet.config.validation import FOLDER_NAME
from mjfleet.errors import UserError
from mjfleet.registry import FoundTask, discover
from mjfleet.runs.config_yaml import from_file, read_config
from mjfleet.runs.own_runs import note_of, tasks_dir_of

Config = TrainConfig | Mapping[str, Any] | str | os.PathLike[str]


def choose_task(
    task: str | type, name: str | None, config: Config | None, changes: Mapping[str, Any]
) -> tuple[FoundTask, TrainConfig]:
    """Return the task, and its configuration: its defaults, changed by `config`, then `changes`.

    Args:
        task: its name, or a subclass of Env.
        name: of the task of a class. None: the class's, `ReachEnv` becomes `reach`.
        config: a configuration, a part of one, or a file as `train --config` reads it.
        changes: fields of TrainConfig; `env` and `agent` may be mappings of what changes.

    Raises:
        UserError: there is no such task, or a value is not allowed.
    """
    changed = _plain(changes)
    given, data = by_dotted_name(changed), _plain(_read(config))
    file = os.fspath(config) if isinstance(config, (str, os.PathLike)) else None
    place = None if file is None else Path(file).parent
    if not isinstance(task, str):
        found = _by_value(task, name, changes)
    elif name is not None:
        raise UserError(f"name={name!r} is for a class; the task {task} has one.")
    else:
        tasks_dir = changed.get("tasks_dir") or (place and tasks_dir_of(place))
        found = discover(os.environ, tasks_dir).find(task)
    try:
        if place is None:
            base = from_dict(found.defaults(), data)
        else:
            base = from_file(found, data, f"config={file}", note_of(place), given.__contains__)
        chosen = from_dict(base, changed)
    except UserError as error:
        raise UserError(f"{found.name}: {error}") from None
    return found, settle(found, chosen, lambda field: given.get(field) is not None)


def _by_value(env_class: type, name: str | None, changes: Mapping[str, Any]) -> ClassTask:
    """Return the task of a class."""
    from mjfleet.env import Env

    if not (isinstance(env_class, type) and issubclass(env_class, Env)):
        raise UserError(f"{env_class!r} is neither a task's name nor a subclass of mjfleet.Env.")
    if missing := sorted(env_class.__abstractmethods__):
        raise UserError(f"{env_class.__name__} lacks {', '.join(missing)}.")
    if name is None:
        stem = env_class.__name__.removesuffix("Env") or env_class.__name__
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", stem).lower()
    if not name or not FOLDER_NAME.holds(name):
        raise UserError(f"name is {name!r}; it must be {FOLDER_NAME.allowed}.")
    env, agent, config = changes.get("env"), changes.get("agent"), config_class(env_class)
    if is_dataclass(env) and not isinstance(env, config):
        raise UserError(
            f"env is a {type(env).__name__}; it must be a {config.__name__} or a mapping."
        )
    task = Task(
        summary=next(iter((env_class.__doc__ or name).strip().splitlines())),
        env=env if isinstance(env, config) else config(),
        env_class=ENV,
        agent=agent if isinstance(agent, AgentConfig) else AgentConfig(),
    )
    return ClassTask(name, Path(name), task, with_whole_path(env_class))


def _read(config: Config | None) -> dict[str, Any]:
    if config is None:
        return {}
    if isinstance(config, TrainConfig):
        return to_dict(config)
    if isinstance(config, Mapping):
        return dict(config)
    if isinstance(config, (str, os.PathLike)):
        return read_config(os.fspath(config))
    raise UserError(f"config is {config!r}; it must be a file, a mapping or a TrainConfig.")


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with dataclasses and paths as plain data."""
    return {name: _plain_value(value) for name, value in values.items()}


def _plain_value(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, Number) and hasattr(value, "item"):
        return value.item()  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(value, Mapping):
        return _plain(value)
    if isinstance(value, Enum):
        return value.name
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def as_flags(changes: Mapping[str, Any]) -> list[str]:
    """Return changes as the flags of a command."""
    return [as_flag(name, value) for name, value in by_dotted_name(_plain(changes)).items()]
