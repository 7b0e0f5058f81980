"""`mjfleet check-task <task>`: finds common mistakes in a task. Imports nothing heavy."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from mjfleet.config import LaunchConfig
from mjfleet.config.flags import parse_flags
from mjfleet.config.validation import Checked, OptionalFolder
from mjfleet.launch.devices import choose_devices
from mjfleet.registry import discover
from mjfleet.utils.console import print_line
from mjfleet.worker.thread_limits import import_prepared


@dataclass(frozen=True, kw_only=True)
class CheckTaskArguments(Checked):
    """Run a task with random actions for some steps on each engine, and look for mistakes."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TASK")]
    """The task."""
    tasks_dir: OptionalFolder = None
    """Folder of task folders that is searched first."""


def check_task(arguments: Sequence[str]) -> int:
    """Print each mistake; return 1 if there are any."""
    parsed = parse_flags(CheckTaskArguments, arguments, "mjfleet check-task")
    found = discover(os.environ, parsed.tasks_dir).find(parsed.name)
    found.check_packages()
    (device,) = choose_devices(LaunchConfig(), os.environ).names
    import_prepared(device, "tools.check_task.examine")
    from mjfleet.tools.check_task.examine import examine

    lines = examine(found, device)
    for kind in ("mistake", "warning", "note"):
        for line in (line for line, its_kind in lines.items() if its_kind == kind):
            print_line(f"{kind}: {line}")
    if "mistake" not in lines.values() and "warning" not in lines.values():
        print_line(f"nothing {'else ' * bool(lines)}found")
    return 1 if "mistake" in lines.values() else 0
