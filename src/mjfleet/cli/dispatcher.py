"""`mjfleet <command>`: finds the command and runs it. Runs in the process that the user started."""

from collections.abc import Sequence
from importlib import import_module

from mjfleet.cli.run_command import run_and_exit
from mjfleet.errors import UserError

COMMANDS = {
    "train": ("cli.train:train", "Train a policy; the same as `train`."),
    "play": ("tools.play.command:play", "Play episodes of a policy; the same as `play`."),
    "tasks": ("tools.list_tasks:tasks", "List the tasks, or what one of them varies."),
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
    "clip": ("tools.clip.command:clip", "Show a clip of a motion, or convert it."),
    "completion": ("cli.completion:completion", "Let a shell complete what you type."),
    "inspect": ("tools.inspect_dump:inspect", "Show the first bad number of a run that diverged."),
}
"""Where in mjfleet each command is, which is imported once it is used, and what it does."""


def main() -> None:
    run_and_exit(mjfleet)


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


if __name__ == "__main__":
    main()
