"""Shows how much of something is done, and the time left."""

import sys
import time
from datetime import timedelta

from mjfleet.utils.console import print_line

TERMINAL_SECONDS, LINE_SECONDS = 0.2, 5.0  # Between two updates: of a terminal's line, in a pipe.
CLEAR = "\r\x1b[K"


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
            print(CLEAR + text, end="", flush=True)
        else:
            print_line(text)

    def close(self) -> None:
        """Remove the line from the terminal."""
        if self._is_terminal:
            print(CLEAR, end="", flush=True)
