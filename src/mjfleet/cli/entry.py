"""What `train`, `play` and `mjfleet` start with: each imports its own command alone."""

import sys
from importlib import import_module


def train() -> None:
    _run("mjfleet.cli.train")


def play() -> None:
    sys.argv.insert(1, "play")
    mjfleet()


def mjfleet() -> None:
    _run("mjfleet.cli.dispatcher")


def _run(module: str) -> None:
    """Run a module's `main`. Ctrl-C while it is imported ends the process without a traceback."""
    try:
        main = import_module(module).main
    except KeyboardInterrupt:
        sys.exit(130)
    main()
