"""`mjfleet tasks`: the tasks that can be trained, or what one of them varies."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from mjfleet.config import from_dict
from mjfleet.config.flags import parse_flags
from mjfleet.config.validation import Checked, OptionalFolder
from mjfleet.registry import FoundTask, discover
from mjfleet.tools.terminal_table import print_table
from mjfleet.utils.console import print_error, print_line


@dataclass(frozen=True, kw_only=True)
class TasksArguments(Checked):
    """List the tasks that can be trained, or build a world of one and show what it varies."""

    name: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[TASK]")] = None
    """The task whose variations are shown."""
    tasks_dir: OptionalFolder = None
    """Folder of task folders that is searched first."""


def tasks(arguments: Sequence[str]) -> int:
    parsed = parse_flags(TasksArguments, arguments, "mjfleet tasks")
    registry = discover(os.environ, parsed.tasks_dir)
    if parsed.name is not None:
        _show_variations(registry.find(parsed.name))
        return 0
    found = registry.tasks.values()
    sizes = [(one.task.observation_sizes or {}).items() for one in found]
    actions = [one.task.num_actions for one in found]
    columns = {
        "task": [*registry.tasks],
        "summary": [one.task.summary for one in found],
        "observations": [", ".join(f"{k} {size}" for k, size in groups) for groups in sizes],
        "actions": ["" if count is None else str(count) for count in actions],
        "folder": [str(one.folder) for one in found],
    }
    print_table(columns)
    for text in registry.broken.values():
        print_error(text)
    return 0


def _show_variations(found: FoundTask) -> None:
    """Build one world of a task, and print what each call of `vary` varies."""
    from mjfleet.env.factory import build_env, on_device

    config = from_dict(found.defaults(), {"env": {"num_envs": 1}})
    with on_device("native", "cpu"), build_env(found, config, "native", "cpu", 1) as env:
        varied = env.variations
    if not varied:
        print_line(f"{found.name} varies nothing by mjfleet.parts.vary.")
        return
    columns = {
        "field": [one.field for one in varied],
        "names": [", ".join(one.names) for one in varied],
        "mode": [one.mode for one in varied],
        "range": [one.range for one in varied],
        "drawn": [
            f"at each {one.when}" if one.when == "reset" else "at the start" for one in varied
        ],
        "worlds": ["all the same" if one.shared else "each its own" for one in varied],
    }
    print_table(columns, found.name)
