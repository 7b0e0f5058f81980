"""What `train`, `play` and `mjfleet` start with: each imports its own command alone."""

from importlib import import_module


def train() -> None:
    import_module("mjfleet.cli.train").main()


def play() -> None:
    import_module("mjfleet.tools.play.command").main()


def mjfleet() -> None:
    import_module("mjfleet.cli.dispatcher").main()
