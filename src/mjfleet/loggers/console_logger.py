"""Shows iterations on the terminal, live or as lines, and warnings. In rank 0."""

import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from statistics import fmean
from typing import Any, Literal

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from mjfleet.loggers.logger import Row
from mjfleet.runs.metrics_csv import TOO_LARGE
from mjfleet.utils.console import discard, print_line

REFRESH_SECONDS = 1.0  # Training waits while the view is drawn, for some milliseconds.
ESTIMATE_SECONDS = 3600.0  # The time left follows from the newest iterations, at most 1000.
SPARKS = "▁▂▃▄▅▆▇█"
BARS = 40
CURVES = {
    "return": "mean_return",
    "evaluated return": "eval/return",
    "reward per step": "mean_reward",
}
"""Columns whose curves the view shows."""

logger = logging.getLogger(__name__)


class ConsoleLogger:
    """Shows each iteration. An earlier part of the run has completed `begun` of them.

    `live` needs a terminal; without one the view is plain. `task` is the title of the live view.
    """

    def __init__(
        self,
        max_iterations: int,
        begun: int = 0,
        view: Literal["live", "plain", "quiet"] = "plain",
        task: str = "",
    ) -> None:
        self._max_iterations, self._begun, self._view = max_iterations, begun, view
        self._start = time.perf_counter()
        self._live = None
        if view == "live" and sys.stdout.isatty():
            self._live = LiveView(task, max_iterations, begun)

    def iteration(self, row: Row, warnings: Sequence[str] = ()) -> None:
        """Show an iteration, and warnings in lines above it."""
        for warning in warnings:
            print_line(f"warning: {warning}")
        if self._live:
            self._live.iteration(row)
        elif self._view != "quiet":
            print_line(self._line(row))

    def _line(self, row: Row) -> str:
        """Return the numbers that matter most, in at most 160 characters; metrics.csv has all."""
        iteration = int(row["iteration"] or 0)
        pace = (time.perf_counter() - self._start) / (iteration - self._begun)
        left = timedelta(seconds=round(pace * (self._max_iterations - iteration)))
        loss = next((name for name in row if name.startswith("loss/")), "loss/value")
        shown = {
            "iteration": f"{iteration}/{self._max_iterations}",
            "return": row["mean_return"],
            "length": row["mean_episode_length"],
            "reward": row["mean_reward"],
            "eval": row.get("eval/return"),
            f"{loss.removeprefix('loss/')}_loss": row.get(loss),
            "std": row.get("action_std"),
            "lr": row["learning_rate"],
            "steps/s": row["global_steps_per_second"],
            "left": left,
        }
        for name in ("eval", "std"):  # Not each algorithm has a deviation.
            if shown[name] is None:
                del shown[name]
        return " ".join(f"{name}={_short(value)}" for name, value in shown.items())

    def close(self) -> None:
        """End the live view, which stays on the terminal."""
        if self._live:
            self._live.close()


class LiveView(Progress):
    """Draws the newest iteration in its place on a terminal; other output appears above it.

    An earlier part of the run has completed `begun` iterations.
    """

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
        self._curves: dict[str, list[float]] = {name: [] for name in CURVES}
        self._newest: Row = {}
        self._due = time.perf_counter() + REFRESH_SECONDS
        self._terminal = sys.stdout
        self.start()  # It replaces sys.stdout.
        # rich hides the cursor, and a process that is killed could not show it again.
        self.console.show_cursor(True)

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield what rich draws."""
        yield self._drawn

    def iteration(self, row: Row) -> None:
        """Draw an iteration, unless another one was drawn shortly before."""
        self._newest = row
        self.update(self._bar, completed=row["iteration"])
        for name, column in CURVES.items():
            if (value := row.get(column)) is not None:
                self._curves[name].append(value)
        if time.perf_counter() >= self._due:
            self._draw()
            self._due = time.perf_counter() + REFRESH_SECONDS

    def close(self) -> None:
        """Draw the last iteration and leave it on the terminal."""
        self._draw()
        self.stop()

    def _draw(self) -> None:
        """Draw the newest iteration. A terminal that has gone away is a warning."""
        try:
            if self._newest:
                self._drawn = self._view(self._newest)
            self.refresh()
        except OSError as error:
            discard(self._terminal)
            logger.warning("the terminal: %s; training continues", error.strerror)

    def _view(self, row: Row) -> RenderableType:
        value = {name: number or 0 for name, number in row.items()}
        lines: dict[str, Any] = {
            name: f"{_short(values[-1] if values else None):<9} {sparkline(values)}"
            for name, values in self._curves.items()
            if values or name == "return"
        }
        lines["episode length"] = row["mean_episode_length"]
        lines["total steps"] = f"{value['total_steps']:,}"
        busy = value["collect_seconds"] / (value["collect_seconds"] + value["learn_seconds"])
        lines["steps per second"] = (
            f"{value['global_steps_per_second']:,}, {busy:.0%} of the time collecting"
        )
        if value["world_size"] > 1:
            lines["slowest worker"] = (
                f"rank {value['slowest_rank']} of {value['world_size']}; the others waited "
                f"{value['wait_seconds']:.2g} s"
            )
        learning = {f"{name} loss": loss for name, loss in _with_prefix(row, "loss/").items()}
        learning |= {"action std": row.get("action_std"), "learning rate": row["learning_rate"]}
        parts = Table.grid(padding=(0, 4))
        shown = {
            "reward terms": _with_prefix(row, "reward/"),
            "metrics": _with_prefix(row, "task/"),
            "learning": learning,
        }
        parts.add_row(*(_column(title, numbers) for title, numbers in shown.items() if numbers))
        head = self.make_tasks_table(self.tasks)
        return Group("", head, "", _column("", lines), "", parts)


def sparkline(values: Sequence[float]) -> str:
    """Return a run's values as a row of at most BARS bars, each the mean of consecutive values.

    Numbers that are not finite, or too large to draw, are left out.
    """
    values = [value for value in values if abs(value) < TOO_LARGE]
    count = min(BARS, len(values))
    ends = [len(values) * i // count for i in range(count + 1)] if count else []
    means = [fmean(values[a:b]) for a, b in pairwise(ends)]
    low, span = min(means, default=0.0), max(means, default=0.0) - min(means, default=0.0)
    return "".join(SPARKS[int(7.999 * (v - low) / span) if span > 0 else 0] for v in means)


def _with_prefix(row: Row, prefix: str) -> dict[str, float | int | None]:
    return {k.removeprefix(prefix): v for k, v in row.items() if k.startswith(prefix)}


def _column(title: str, entries: Mapping[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    if title:
        table.add_row(Text(title, style="bold"))
    for name, value in entries.items():
        table.add_row(Text(name, style="dim"), _short(value))
    return table


def _short(value: object) -> str:
    """Return a number in at most nine characters; other values as they are."""
    if not isinstance(value, float):
        return "-" if value is None else str(value)
    text = f"{value:.4g}"
    return f"{value:.3g}" if "e" in text else text
