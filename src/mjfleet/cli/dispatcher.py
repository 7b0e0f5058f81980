"""`mjfleet <command>`: finds the command and runs it. Runs in the process that the user started."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from mjfleet.cli.run_command import run_command
from mjfleet.config.flags import parse_flags
from mjfleet.config.validation import Checked, OptionalFolder
from mjfleet.errors import UserError
from mjfleet.registry import discover
from mjfleet.utils.console import print_error

COMMANDS = {
    "train": ("cli.train:train", "Train a policy; the same as `train`."),
    "play": ("tools.play.command:play", "Play episodes of a policy; the same as `play`."),
    "tasks": ("cli.dispatcher:tasks", "List the tasks that can be trained."),
    "new-task": ("tools.new_task:new_task", "Write a task to start from."),
    "check-task": ("tools.check_task.command:check_task", "Look for common mistakes in a task."),
    "doctor": ("tools.doctor.command:doctor", "Check what training on this machine needs."),
    "submit": ("submit.command:submit", "Run a command on a cluster."),
    "tune": ("bench.tune:tune", "Measure how many environments train fastest."),
    "bench": ("bench.command:bench", "Measure how fast training is on this machine."),
    "sweep": ("sweep.command:sweep", "Find good settings by many short runs."),
    "runs": ("tools.list_runs:runs", "List runs and their status."),
    "plot": ("tools.report.command:plot", "Draw curves of runs."),
    "compare": ("tools.report.command:compare", "Compare the results of runs."),
    "report": ("tools.report.command:report", "Write an HTML page about runs."),
    "export": (
        "tools.export.command:export",
        "Write a policy as a file that runs without mjfleet.",
    ),
    "completion": ("cli.completion:completion", "Let a shell complete what you type."),
    "inspect": ("tools.inspect_dump:inspect", "Show the first bad number of a run that diverged."),
}
"""Where in mjfleet each command is, which is imported once it is used, and what it does."""


@dataclass(frozen=True, kw_only=True)
class TasksArguments(Checked):
    """List the tasks that can be trained."""

    tasks_dir: OptionalFolder = None
    """Folder of task folders that is searched first."""


def main() -> None:
    sys.exit(run_command(mjfleet, sys.argv[1:]))


def mjfleet(arguments: Sequence[str]) -> int:
    """Run a command of COMMANDS and return its exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: mjfleet <command> ...\n\ncommands:")
        for name, (_, summary) in COMMANDS.items():
            print(f"  {name:<12}{summary}")
        print("\n`mjfleet <command> --help` says more, `mjfleet --version` what is installed.")
        return 0 if arguments else 2
    if arguments[0] not in COMMANDS:
        raise UserError(f"there is no command `{arguments[0]}`. Commands: {', '.join(COMMANDS)}.")
    module, _, function = COMMANDS[arguments[0]][0].partition(":")
    return getattr(import_module(f"mjfleet.{module}"), function)(arguments[1:])


def tasks(arguments: Sequence[str]) -> int:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    parsed = parse_flags(TasksArguments, arguments, "mjfleet tasks")
    registry = discover(os.environ, parsed.tasks_dir)
    table = Table(box=box.SIMPLE)
    table.add_column("task", no_wrap=True)
    for column in ("summary", "observations", "actions"):
        table.add_column(column)
    table.add_column("folder", overflow="fold")
    for name, found in registry.tasks.items():
        sizes = (found.task.observation_sizes or {}).items()
        observations = ", ".join(f"{group} {size}" for group, size in sizes)
        actions = "" if found.task.num_actions is None else str(found.task.num_actions)
        cells = name, found.task.summary, observations, actions, str(found.folder)
        table.add_row(*map(Text, cells))  # Brackets are no markup.
    # In a pipe each task gets one line.
    Console(width=None if sys.stdout.isatty() else 400).print(table)
    for text in registry.broken.values():
        print_error(text)
    return 0


if __name__ == "__main__":
    main()
