"""Printing for the person who runs this: a terminal that has gone away never ends a run."""

import os


def print_line(text: str) -> None:
    """Print a line at once. If nobody can read it, as after `| head`, print no more."""
    try:
        print(text, flush=True)
    except OSError:
        # What is still buffered must not fail either, here or when Python exits.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)


def in_a_line(error: BaseException) -> str:
    """An exception's message without line breaks, or its type where it has none."""
    return " ".join(str(error).split()) or type(error).__name__
