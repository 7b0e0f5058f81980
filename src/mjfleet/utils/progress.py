"""Shows how much of something is done, and the time left."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.live import Live


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


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[float], object]]:
    """Yield a function that shows which share is done, 0 to 1; nothing without a terminal."""
    from rich import progress

    columns = [progress.TextColumn(title), progress.BarColumn()]
    columns += [progress.TaskProgressColumn(), progress.TimeRemainingColumn()]
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    with progress.Progress(*columns, transient=True, disable=not is_terminal) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda share: bar.update(task, completed=share)
