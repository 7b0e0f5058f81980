"""Finds tasks. From a name, or a class, and changes: a task and its configuration."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, get_type_hints

from mjfleet.api.task_by_value import ENV, ClassTask, config_class, with_whole_path
from mjfleet.cli.train import settle
from mjfleet.config import AgentConfig, Task, TrainConfig, by_dotted_name, from_dict
from mjfleet.config.dict_conversion import convert, plain, value_at
from mjfleet.config.field_kinds import leaves
from mjfleet.config.flags import as_words
from mjfleet.config.train_config import ALGORITHM
from mjfleet.config.unused_fields import refuse_unused, unused_fields
from mjfleet.config.validation import FOLDER_NAME
from mjfleet.errors import UserError
from mjfleet.launch.devices import uses_gpus
from mjfleet.launch.launch_plan import new_folder
from mjfleet.registry import FoundTask, discover
from mjfleet.runs.config_yaml import from_typed_file, of_algorithm, read_config, without_task
from mjfleet.runs.find_run import refuse_log_root
from mjfleet.runs.own_runs import tasks_dir_of
from mjfleet.runs.run_files import pin_files
from mjfleet.utils.made_folders import make_folder

Config = TrainConfig | Mapping[str, Any] | str | os.PathLike[str]


def tasks(tasks_dir: str | None = None) -> dict[str, str]:
    """Return what each task is, by its name: those that `mjfleet tasks` lists.

    Args:
        tasks_dir: a folder of task folders that is searched first.

    Raises:
        UserError: `tasks_dir` is no folder, or two tasks have the same name.
    """
    folder = from_dict(TrainConfig(), {"tasks_dir": plain(tasks_dir)}).tasks_dir
    found = discover(os.environ, folder).tasks
    return {name: entry.task.summary for name, entry in found.items()}


def choose_task(
    task: str | type, name: str | None, config: Config | None, changes: Mapping[str, Any]
) -> tuple[FoundTask, TrainConfig]:
    """Return the task, and its configuration: its defaults, changed by `config`, then `changes`.

    The arguments are those of `mjfleet.train`. UserError if there is no such task, or a value is
    not allowed.
    """
    changed = plain(changes)
    given = by_dotted_name(changed)
    file = os.fspath(config) if isinstance(config, (str, os.PathLike)) else None
    place = None if file is None else Path(file).parent
    data = plain({} if config is None else config) if file is None else {}
    if not isinstance(task, str):
        found = _by_value(task, name, changes)
    elif name is not None:
        raise UserError(f"name={name!r} is for a class; the task {task} has one.")
    else:
        wanted = changed.get("tasks_dir", value_at(data, "tasks_dir"))
        typed = from_dict(TrainConfig(), {"tasks_dir": wanted}).tasks_dir
        tasks_dir = typed or (place and tasks_dir_of(place))
        found = discover(os.environ, tasks_dir).find(task)
    own, kind = changes.get("env"), type(found.task.env)
    if is_dataclass(own) and not isinstance(own, kind):
        raise UserError(
            f"{found.name}: env is {own!r}, which would set all its fields; it must be a "
            f"{kind.__name__}(...) or a mapping such as {{'num_envs': 64}}."
        )
    algorithm = given.get(ALGORITHM)
    try:
        if file is None:
            data = without_task(data, "config", found.name)
            default = found.defaults(algorithm or value_at(data, ALGORITHM))
            base = from_dict(default, of_algorithm(default, data))
        else:
            data, default = read_config(file, task=found.name), found.defaults(algorithm)
            is_given, name = given.__contains__, f"config={config}"
            base = from_typed_file(found, file, data, name, is_given, default)
        chosen = from_dict(base, changed)
    except UserError as error:
        raise UserError(f"{found.name}: {error}") from None
    typed = {*_typed(changes)}
    refuse_unused(chosen.agent, typed)
    if uses_gpus(chosen, os.environ):
        chosen = found.with_usual_on_gpu(chosen, {*given, *by_dotted_name(data)})
    chosen = settle(found, chosen, lambda field: field in typed and given.get(field) is not None)
    return found, pin_files(found, chosen, place)


def _by_value(env_class: type, name: str | None, changes: Mapping[str, Any]) -> ClassTask:
    from mjfleet.env import Env

    if not (isinstance(env_class, type) and issubclass(env_class, Env)):
        raise UserError(f"{env_class!r} is neither a task's name nor a subclass of mjfleet.Env.")
    if name is None:
        stem = env_class.__name__.removesuffix("Env") or env_class.__name__
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", stem).lower()
    is_word = isinstance(name, str) and name and not name.startswith("-")
    if not (is_word and FOLDER_NAME.holds(name)):
        raise UserError(f"name is {name!r}; it must be {FOLDER_NAME.allowed}, without a `-` first.")
    env, agent, config = changes.get("env"), changes.get("agent"), config_class(env_class)
    try:
        env = env if isinstance(env, config) else config()
    except TypeError as error:
        raise UserError(f"{error}; give it a default, or env={config.__name__}(...).") from error
    task = Task(
        summary=((env_class.__doc__ or "").strip() or name).splitlines()[0],
        env=env,
        env_class=ENV,
        agent=agent if isinstance(agent, AgentConfig) else AgentConfig(),
    )
    return ClassTask(name=name, folder=Path(name), task=task, env_class=with_whole_path(env_class))


def new_run_dir(config: TrainConfig) -> tuple[Path, int]:
    """Make the folder of a new run; return it, and of how many folders it is the innermost new one.

    It is `run_dir`, or one that no other run has. UserError if it cannot be made.
    """
    when, flag = datetime.now(), "--run-dir" if config.run_dir else "--log-root"
    if not config.run_dir:
        refuse_log_root(config.log_root, config.agent.experiment_name)
    while True:
        run_dir = new_folder(config, when).absolute()
        made = make_folder(run_dir, flag)
        if config.run_dir or run_dir in made:
            return run_dir, len(made)
        when += timedelta(seconds=1)


def check_kinds(changes: Mapping[str, Any]) -> None:
    """Raise UserError if a field that all tasks share has a value of another type."""
    given = by_dotted_name(plain(changes))
    for leaf in leaves(TrainConfig, TrainConfig()):
        if leaf.name in given:
            hint = get_type_hints(leaf.owner)[leaf.name.rpartition(".")[2]]
            convert(hint, given[leaf.name], None, leaf.name)


def as_flags(changes: Mapping[str, Any]) -> list[str]:
    """Return changes as flags of a command.

    Of a configuration that is given whole, fields without effect, and those that hold no
    configuration although they may, are left out.
    """
    changed, agent = by_dotted_name(plain(changes)), changes.get("agent")
    if isinstance(agent, AgentConfig):
        for field in unused_fields(agent, list(changed)):
            del changed[field.name]
    whole = {name: one for name, one in changes.items() if is_dataclass(one)}
    flags = {
        leaf.name for name in whole for leaf in leaves(type(whole[name]), whole[name], f"{name}.")
    }
    return [
        word
        for name, value in changed.items()
        if value is not None or name in flags or name.partition(".")[0] not in whole
        for word in as_words(name, value)
    ]


def _typed(changes: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of the fields that are given one by one, not by a configuration."""
    for name, value in changes.items():
        if isinstance(value, Mapping):
            yield from _typed(value, f"{prefix}{name}.")
        elif not is_dataclass(value):
            yield f"{prefix}{name}"
