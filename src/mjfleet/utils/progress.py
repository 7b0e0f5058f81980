"""Shows how much of something is done, and the time left."""

import shutil
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from mjfleet.utils.console import print_line

if TYPE_CHECKING:
    from rich.live import Live

TERMINAL_SECONDS, LINE_SECONDS = 0.2, 5.0  # Between two updates: of a terminal's line, in a pipe.
CLEAR = "\r\x1b[K"


def erase_wrapped(live: "Live", drawn: int) -> int:
    """Erase the lines that a narrower terminal has added to a view; return the terminal's columns.

    Terminals wrap what they show when they shrink. rich erases as many lines as it has drawn, which
    was `drawn` columns wide.
    """
    from rich.cells import cell_len
    from rich.control import Control
    from rich.segment import ControlType

    console, columns = live.console, live.console.width
    if columns < drawn:
        options = console.options.update(width=drawn)
        lines = console.render_lines(live.renderable, options, pad=False)
        shown = ("".join(segment.text for segment in line).rstrip() for line in lines)
        more = sum(max(0, cell_len(text) - 1) // columns for text in shown)
        up = (ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)
        console.control(Control(*up * more))
    return columns


class Progress:
    """One line that changes on a terminal; elsewhere a line every few seconds."""

    def __init__(self, title: str) -> None:
        self._title, self._start = title, time.perf_counter()
        self._is_terminal = sys.stdout is not None and sys.stdout.isatty()
        self._interval = TERMINAL_SECONDS if self._is_terminal else LINE_SECONDS
        self._due = self._start + self._interval

    def show(self, share: float) -> None:
        """Show the share that is done, 0 to 1, unless it was shown shortly before."""
        now = time.perf_counter()
        if now < self._due or share <= 0.0:
            return
        self._due = now + self._interval
        left = timedelta(seconds=round((now - self._start) * (1 - share) / share))
        text = f"{self._title}: {share:.0%}, {left} left"
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1  # A line that wraps is not cleared.
            print(CLEAR + text[:width], end="", flush=True)
        else:
            print_line(text)

    def close(self) -> None:
        """Remove the line from the terminal."""
        if self._is_terminal:
            print(CLEAR, end="", flush=True)
