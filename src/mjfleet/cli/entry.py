"""What `train`, `play` and `mjfleet` start with: each imports its own command alone."""

from importlib import import_module


def train() -> None:
    """Run the command line `train`."""
    import_module("mjfleet.cli.train").main()


def play() -> None:
    """Run the command line `play`."""
    import_module("mjfleet.tools.play.command").main()


def mjfleet() -> None:
    """Run the command line `mjfleet`."""
    import_module("mjfleet.cli.dispatcher").main()
