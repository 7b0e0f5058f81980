"""Prints lines; a terminal that has gone away never ends a run."""

import io
import logging
import os
import re
import select
import sys
from contextlib import suppress
from typing import TextIO

logger = logging.getLogger(__name__)


def open_streams() -> None:
    """Have three standard streams that take any text. A command calls this first.

    A closed one becomes /dev/null: the next file that is opened would otherwise take its number,
    and all output. Letters that the terminal's encoding lacks are shown as escapes.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # Takes the lowest number that is free.
    sys.stdin = sys.stdin or open(0, encoding="utf-8")  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_line(text: str) -> None:
    """Print a line at once. If that fails, discard this and all later output.

    After `| head`, nobody wants more of it; anything else, such as a full disk, is a warning.
    """
    try:
        try:
            print(printable(text), flush=True)
        except RuntimeError:
            # This is a signal's handler, inside of another print, whose buffer is in use.
            os.write(sys.stdout.fileno(), f"{printable(text)}\n".encode(errors="backslashreplace"))
    except OSError as error:
        discard(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            logger.warning("standard output: %s; the command continues", error.strerror)


def print_if_read(text: str) -> None:
    """Print a line, unless nobody reads the output at the moment, and this process would wait."""
    with suppress(OSError, ValueError):  # It is no file, as in a notebook.
        if not select.select([], [sys.stdout], [], 0)[1]:
            return
    print_line(text)


def print_error(text: str) -> None:
    """Print to standard error. If that fails, discard this and all later output there."""
    try:
        print(printable(text), file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


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


def discard(stream: TextIO) -> None:
    """Discard later output and what is buffered, which would fail again when Python exits."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, stream.fileno())
    os.close(nothing)
