"""What `train`, `play` and `mjfleet` start with: nothing has been imported yet."""

import sys

try:
    import signal
    from importlib import import_module
except KeyboardInterrupt:  # These take most of the time until `run` is called.
    sys.exit(130)


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
    """Run a module's `main`. Before and after that, Ctrl-C ends the process without a traceback."""
    raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if raises:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    asks_for_version = sys.argv[-1] == "--version"
    main = import_module("mjfleet.cli.version" if asks_for_version else module).main
    if raises:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        main()
    finally:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
