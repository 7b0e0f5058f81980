"""Prints lines; a terminal that has gone away never ends a run."""

import os
import re


def print_line(text: str) -> None:
    """Print a line at once. If that fails, as after `| head`, discard this and all later output."""
    try:
        print(printable(text), flush=True)
    except OSError:
        # Also discards what is buffered, which would fail again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def printable(text: str) -> str:
    r"""Return text with escapes such as `\x1b` instead of what a terminal would obey.

    These are all characters that cannot be printed, except line breaks and tabs.
    """
    return re.sub(r"[^\n\t -~]", lambda found: _escaped(found[0]), text)


def _escaped(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def in_a_line(error: BaseException) -> str:
    """Return an exception's message without line breaks, or its type if the message is empty."""
    return " ".join(str(error).split()) or type(error).__name__
