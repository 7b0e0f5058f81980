"""Shows how much of something is done, and the time left."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
