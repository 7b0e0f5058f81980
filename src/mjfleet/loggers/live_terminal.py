"""A live view of the run on a terminal. It stays in place; other output appears above it."""

import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from statistics import fmean
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mjfleet.loggers.iteration_metrics import IterationMetrics
from mjfleet.utils.console import discard
from mjfleet.utils.progress import erase_wrapped

REFRESH_SECONDS = 0.2
DRAWING_SHARE = 0.002  # Share of the run's time that drawing may take, since training waits for it.
SPARKS = "▁▂▃▄▅▆▇█"
BARS = 40


class LiveView:
    """Draws the newest iteration; an earlier part of the run has completed `begun` of them."""

    def __init__(self, task: str, max_iterations: int, begun: int) -> None:
        self._task, self._max_iterations, self._begun = task, max_iterations, begun
        self._start = time.perf_counter()
        self._due = self._start + REFRESH_SECONDS
        self._newest: IterationMetrics | None = None
        names = ("return", "evaluated return", "reward per step")
        self._curves: dict[str, list[float]] = {name: [] for name in names}
        self._terminal = sys.stdout  # Which rich replaces.
        self._live = Live(console=Console(), auto_refresh=False)
        self._width = self._live.console.width
        self._live.start()
        # rich hides the cursor, and a process that is killed could not show it again.
        self._live.console.show_cursor(True)

    def iteration(self, metrics: IterationMetrics) -> None:
        """Draw an iteration, unless another one was drawn shortly before."""
        self._newest = metrics
        newest = metrics.mean_return, metrics.evaluation.get("return"), metrics.mean_reward
        for curve, value in zip(self._curves.values(), newest, strict=True):
            if value is not None:
                curve.append(value)
        begun = time.perf_counter()
        if begun >= self._due:
            self._draw()
            self._live.refresh()
            ended = time.perf_counter()
            self._due = ended + max(REFRESH_SECONDS, (ended - begun) / DRAWING_SHARE)

    def close(self) -> None:
        """Draw the last iteration and leave it on the terminal."""
        self._draw()
        self._live.stop()

    def abandon(self) -> None:
        """End the view of a terminal that has gone away; print to nowhere from now on."""
        discard(self._terminal)
        self._live.stop()

    def _draw(self) -> None:
        self._width = erase_wrapped(self._live, self._width)
        if self._newest:
            self._live.update(self._view(self._newest, time.perf_counter() - self._start))

    def _view(self, m: IterationMetrics, seconds: float) -> RenderableType:
        each = seconds / (m.iteration - self._begun)
        left = timedelta(seconds=round(each * (self._max_iterations - m.iteration)))
        head = Table.grid(padding=(0, 2), expand=True)
        for ratio in (None, None, 1, None):
            head.add_column(no_wrap=True, ratio=ratio)
        head.add_row(
            Text(self._task, style="bold"),
            f"iteration {m.iteration}/{self._max_iterations}",
            ProgressBar(total=self._max_iterations, completed=m.iteration),
            f"{timedelta(seconds=round(seconds))} elapsed, {left} left",
        )
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
