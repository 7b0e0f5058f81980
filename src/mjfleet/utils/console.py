"""Prints lines; a terminal that has gone away never ends a run."""

import os


def print_line(text: str) -> None:
    """Print a line at once. If that fails, as after `| head`, discard this and all later output."""
    try:
        print(text, flush=True)
    except OSError:
        # Also discards what is buffered, which would fail again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def in_a_line(error: BaseException) -> str:
    """Return an exception's message without line breaks, or its type if the message is empty."""
    return " ".join(str(error).split()) or type(error).__name__
