"""`mjfleet <command>`: the commands besides training, and training once more."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import tyro

from mjfleet.bench.command import bench
from mjfleet.cli.train import train
from mjfleet.errors import UserError, run_command
from mjfleet.registry import discover
from mjfleet.tools.check_task.command import check_task
from mjfleet.tools.doctor.command import doctor
from mjfleet.tools.export.command import export
from mjfleet.tools.list_runs import runs
from mjfleet.tools.new_task import new_task
from mjfleet.tools.play.command import play
from mjfleet.tools.plot import plot
from mjfleet.tools.report.command import report
from mjfleet.utils.console import print_line


@dataclass(frozen=True, kw_only=True)
class TasksArguments:
    """List the tasks that can be trained."""

    tasks_dir: str | None = None
    """Folder of task folders that is searched first."""


@dataclass(frozen=True, kw_only=True)
class InspectArguments:
    """Show which number of which world went bad first, in a dump that a diverged run has left."""

    file: tyro.conf.Positional[str]
    """The dump: failures/nan_rank<r>.npz in the run directory."""


def main() -> None:
    """Entry point of the command `mjfleet`."""
    sys.exit(run_command(mjfleet, sys.argv[1:]))


def mjfleet(arguments: Sequence[str]) -> int:
    """Dispatch to a command; returns the exit code."""
    commands = {
        "train": train, "play": play, "tasks": tasks, "new-task": new_task,
        "check-task": check_task, "doctor": doctor, "bench": bench, "runs": runs,
        "plot": plot, "report": report, "export": export, "inspect": inspect,
    }  # fmt: skip
    usage = (
        "usage: mjfleet <command> ...\n\n"
        "commands:\n"
        "  train       Train a policy; the same as `train`.\n"
        "  play        Play whole episodes of a policy; the same as `play`.\n"
        "  tasks       List the tasks that can be trained.\n"
        "  new-task    Write a task to start from.\n"
        "  check-task  Look for common mistakes in a task.\n"
        "  doctor      Check what training on this machine needs.\n"
        "  bench       Measure how fast training is on this machine.\n"
        "  runs        List runs and what has become of them.\n"
        "  plot        Draw curves of runs.\n"
        "  report      Write a page about a run, for a browser.\n"
        "  export      Write a policy as a file that runs without mjfleet.\n"
        "  inspect     Show what went bad first in a run that diverged.\n\n"
        "`mjfleet <command> --help` says more."
    )
    if not arguments or arguments[0] in ("-h", "--help"):
        print_line(usage)
        return 0 if arguments else 2
    if arguments[0] not in commands:
        raise UserError(f"there is no command `{arguments[0]}`. Commands: {', '.join(commands)}.")
    return commands[arguments[0]](arguments[1:])


def tasks(arguments: Sequence[str]) -> int:
    """Print the tasks as a table."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    parsed = tyro.cli(TasksArguments, args=arguments, prog="mjfleet tasks")
    registry = discover(os.environ, parsed.tasks_dir)
    table = Table(box=box.SIMPLE)
    table.add_column("task", no_wrap=True)
    for column in ("summary", "observations", "actions"):
        table.add_column(column)
    table.add_column("folder", overflow="fold")
    for name, found in registry.tasks.items():
        sizes = (found.task.observation_sizes or {}).items()
        observations = ", ".join(f"{group} {size}" for group, size in sizes)
        actions = found.task.num_actions
        table.add_row(
            name,
            found.task.summary,
            observations or "?",
            "?" if actions is None else str(actions),
            str(found.folder),
        )
    # Into a pipe, one line for each task.
    Console(width=None if sys.stdout.isatty() else 400).print(table)
    for folder, why in registry.broken.items():
        print(f"{folder} could not be read: {why}", file=sys.stderr)
    return 0


def inspect(arguments: Sequence[str]) -> int:
    """Print what a dump of worlds that went bad tells."""
    parsed = tyro.cli(InspectArguments, args=arguments, prog="mjfleet inspect")
    from mjfleet.nan_dump.command import describe

    print_line(describe(parsed.file))
    return 0


if __name__ == "__main__":
    main()
