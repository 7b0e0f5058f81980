"""`mjfleet.tasks`."""

import os

from mjfleet.registry import discover


def tasks(tasks_dir: str | None = None) -> dict[str, str]:
    """Return what each task is, by its name: those that `mjfleet tasks` lists.

    Args:
        tasks_dir: a folder of task folders that is searched first.

    Raises:
        UserError: the folder does not exist, or two tasks have the same name.
    """
    found = discover(os.environ, tasks_dir).tasks
    return {name: entry.task.summary for name, entry in found.items()}
