"""`mjfleet check-task <task>`: finds common mistakes in a task. Imports nothing heavy."""

import os
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from mjfleet.config import LaunchConfig, from_dict
from mjfleet.config.flags import parse_flags
from mjfleet.config.validation import Checked, OptionalFolder
from mjfleet.errors import UserError
from mjfleet.launch.devices import choose_devices
from mjfleet.registry import FoundTask, discover
from mjfleet.utils.console import in_a_line, print_line
from mjfleet.worker.thread_limits import prepare

WORLDS = 32


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
    prepare()
    mistakes, warnings = examine(found, device)
    for kind, texts in (("mistake", mistakes), ("warning", warnings)):
        for text in texts:
            print_line(f"{kind}: {text}")
    if not mistakes and not warnings:
        print_line("nothing found")
    return 1 if mistakes else 0


def examine(found: FoundTask, device: str) -> tuple[list[str], list[str]]:
    """Return lines about mistakes and about what may be one; print which engine runs."""
    from mjfleet.tools.check_task.examine import Examination
    from mjfleet.tools.check_task.signals import STEPS

    config = from_dict(found.defaults(), {"env": {"num_envs": WORLDS}})
    examination = Examination(found, config)
    checks = {
        "native on cpu": examination.on_native(),
        f"warp on {device}": examination.against_warp(device),
    }
    texts: tuple[list[str], list[str]] = ([], [])
    for where, findings in checks.items():
        compiles = "; compiling a new model's kernels takes about a minute" * ("warp" in where)
        print_line(f"{where}: {STEPS} steps of {WORLDS} worlds with random actions{compiles}")
        try:
            for finding in findings:
                if str(finding) not in texts[not finding.is_sure]:
                    texts[not finding.is_sure].append(str(finding))
        except Exception as error:
            texts[0].append(describe(error, found))
            break
        if any("not finite" in text for text in texts[0]):
            break  # Both engines would show it.
    return texts


def describe(error: Exception, found: FoundTask) -> str:
    """Return an exception's message with the last line of the task's code that led to it.

    An exception that the task's code did not lead to is raised.
    """
    if isinstance(error, UserError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(found.folder)]
    if not own:
        raise error
    place = f"{os.path.relpath(own[-1].filename)}:{own[-1].lineno}, in {own[-1].name}()"
    return f"{place}: `{own[-1].line}`: {type(error).__name__}: {in_a_line(error)}"
