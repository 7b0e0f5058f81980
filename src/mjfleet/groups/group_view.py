"""Shows the runs of a group that are being trained, on a terminal. Runs in the launcher."""

import sys
import time
from collections.abc import Sequence
from typing import Self

from mjfleet.config import TrainConfig
from mjfleet.groups.run_queue import RunningMember
from mjfleet.utils.console import print_line, printable

REFRESH_SECONDS = 1.0


class GroupView:
    """Prints lines, and below them how far runs are, on a terminal without --plain."""

    def __init__(self, config: TrainConfig) -> None:
        self._due, self._live, self._is_quiet = 0.0, None, config.quiet
        if sys.stdout.isatty() and not (config.plain or config.quiet):
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(), auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
            # rich hides the cursor, and a process that is killed could not show it again.
            self._live.console.show_cursor(True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a line, unless --quiet."""
        if not self._is_quiet:
            print_line(text)

    def show(self, running: Sequence[RunningMember], note: str) -> None:
        """Draw what each run has printed last, and a note, unless that was done shortly before."""
        if self._live is None or time.monotonic() < self._due:
            return
        from rich.text import Text

        lines = [f"{one.member.name}: {printable(one.last_line)}" for one in running]
        shown = "\n".join([*lines, note]).rstrip()
        self._live.update(Text(shown, no_wrap=True, overflow="ellipsis"), refresh=True)
        self._due = time.monotonic() + REFRESH_SECONDS
