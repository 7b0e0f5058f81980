"""What `train`, `play` and `mjfleet` start with: nothing has been imported yet."""

import sys
from importlib import import_module


def train() -> None:
    """Run the command line `train`."""
    run("mjfleet.cli.train")


def play() -> None:
    """Run the command line `play`."""
    run("mjfleet.tools.play.command")


def mjfleet() -> None:
    """Run the command line `mjfleet`."""
    run("mjfleet.cli.dispatcher")


def run(module: str) -> None:
    """Run a module's `main`; Ctrl-C while it is imported shows no traceback."""
    try:
        main = import_module(module).main
    except KeyboardInterrupt:
        sys.exit(130)
    main()
