"""A live view of the run on a terminal. It stays in place; other output appears above it."""

import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from mjfleet.loggers.iteration_metrics import IterationMetrics
from mjfleet.utils.console import discard
from mjfleet.utils.progress import erase_wrapped

REFRESH_SECONDS = 0.2
DRAWING_SHARE = 0.002  # Share of the run's time that drawing may take, since training waits for it.
ESTIMATE_SECONDS = 3600.0  # The time left follows from the newest iterations, at most 1000.
SPARKS = "▁▂▃▄▅▆▇█"
BARS = 40

logger = logging.getLogger(__name__)


class LiveView(Progress):
    """Draws the newest iteration; an earlier part of the run has completed `begun` of them."""

    def __init__(self, task: str, max_iterations: int, begun: int) -> None:
        self._drawn: RenderableType = ""
        super().__init__(
            TextColumn("{task.description}", style="bold", markup=False),
            TextColumn(" iteration {task.completed}/{task.total} "),
            BarColumn(bar_width=None),
            *(TimeElapsedColumn(), TextColumn("elapsed,")),
            *(TimeRemainingColumn(), TextColumn("left")),
            console=Console(),
            auto_refresh=False,
            expand=True,
            speed_estimate_period=ESTIMATE_SECONDS,
        )
        self._bar = self.add_task(task, total=max_iterations, completed=begun)
        self._curves: dict[str, list[float]] = {
            name: [] for name in ("return", "evaluated return", "reward per step")
        }
        self._newest: IterationMetrics | None = None
        self._due = time.perf_counter() + REFRESH_SECONDS
        self._terminal, self._width = sys.stdout, self.console.width
        self.start()  # It replaces sys.stdout.
        # rich hides the cursor, and a process that is killed could not show it again.
        self.console.show_cursor(True)

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield what rich draws."""
        yield self._drawn

    def iteration(self, metrics: IterationMetrics) -> None:
        """Draw an iteration, unless another one was drawn shortly before."""
        self._newest = metrics
        self.update(self._bar, completed=metrics.iteration)
        newest = metrics.mean_return, metrics.evaluation.get("return"), metrics.mean_reward
        for curve, value in zip(self._curves.values(), newest, strict=True):
            if value is not None:
                curve.append(value)
        begun = time.perf_counter()
        if begun >= self._due:
            self._draw()
            ended = time.perf_counter()
            self._due = ended + max(REFRESH_SECONDS, (ended - begun) / DRAWING_SHARE)

    def close(self) -> None:
        """Draw the last iteration and leave it on the terminal."""
        self._draw()
        self.stop()

    def _draw(self) -> None:
        """Draw the newest iteration. A terminal that has gone away is a warning."""
        try:
            self._width = erase_wrapped(self.live, self._width)
            if self._newest:
                self._drawn = self._view(self._newest)
            self.refresh()
        except OSError as error:
            discard(self._terminal)
            logger.warning("the terminal: %s; training continues", error.strerror)

    def _view(self, m: IterationMetrics) -> RenderableType:
        lines: dict[str, Any] = {
            name: f"{_number(values[-1] if values else None):<9} {sparkline(values)}"
            for name, values in self._curves.items()
            if values or name == "return"
        }
        lines |= {"episode length": m.mean_episode_length, "total steps": f"{m.total_steps:,}"}
        busy = m.collect_seconds / (m.collect_seconds + m.learn_seconds)
        lines["steps per second"] = (
            f"{m.global_steps_per_second:,.0f}, {busy:.0%} of the time collecting"
        )
        if m.world_size > 1:
            lines["slowest worker"] = (
                f"rank {m.slowest_rank} of {m.world_size}; the others waited {m.wait_seconds:.2g} s"
            )
        learning = {f"{name} loss": value for name, value in m.losses.items()}
        learning |= {"action std": m.action_std, "learning rate": m.learning_rate}
        parts = Table.grid(padding=(0, 4))
        shown = {"reward terms": m.terms, "metrics": m.task, "learning": learning}
        parts.add_row(*(_column(title, numbers) for title, numbers in shown.items() if numbers))
        head = self.make_tasks_table(self.tasks)
        return Group("", head, "", _column("", lines), "", parts)


def sparkline(values: Sequence[float]) -> str:
    """Return a run's values as a row of at most BARS bars, each the mean of consecutive values."""
    count = min(BARS, len(values))
    ends = [len(values) * i // count for i in range(count + 1)] if count else []
    means = [fmean(values[a:b]) for a, b in pairwise(ends)]
    low, span = min(means, default=0.0), max(means, default=0.0) - min(means, default=0.0)
    return "".join(SPARKS[int(7.999 * (v - low) / span) if span > 0 else 0] for v in means)


def _column(title: str, entries: Mapping[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    if title:
        table.add_row(Text(title, style="bold"))
    for name, value in entries.items():
        table.add_row(Text(name, style="dim"), value if isinstance(value, str) else _number(value))
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
