"""A table of the runs of a group that are being trained, on a terminal. Runs in the launcher."""

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from mjfleet.config import TrainConfig
from mjfleet.groups.run_queue import RunningMember
from mjfleet.runs.metrics_csv import newest_row, value
from mjfleet.utils.console import print_line

REFRESH_SECONDS = 1.0
COLUMNS = ("run", "on", "iteration", "return", "steps/s")


class GroupView:
    """Prints lines, and below them a table, if there is a terminal and no flag against it."""

    def __init__(self, config: TrainConfig) -> None:
        self._iterations, self._due, self._live = config.agent.max_iterations, 0.0, None
        self._is_quiet = config.quiet
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
        """Draw the table, and a note below it, unless it was drawn shortly before."""
        if self._live is None or time.monotonic() < self._due:
            return
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, caption=Text(note), caption_justify="left", padding=(0, 2, 0, 0))
        for column in COLUMNS:
            table.add_column(column, justify="left" if column in COLUMNS[:2] else "right")
        for one in running:
            row = {}
            with suppress(OSError):
                row = newest_row(one.run_dir)
            done = f"{row.get('iteration', 0)}/{self._iterations}"
            mean, speed = value(row, "mean_return"), value(row, "global_steps_per_second")
            numbers = ("-" if mean is None else f"{mean:.4g}", f"{speed:,.0f}" if speed else "-")
            table.add_row(*map(Text, (one.member.name, str(one.share), done, *numbers)))
        self._live.update(table, refresh=True)
        self._due = time.monotonic() + REFRESH_SECONDS
