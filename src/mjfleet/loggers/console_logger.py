"""Shows iterations on the terminal, live or as lines, and warnings. In rank 0."""

import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Literal

from mjfleet.loggers.live_terminal import LiveView
from mjfleet.loggers.logger import Row
from mjfleet.utils.console import print_line


class ConsoleLogger:
    """Shows each iteration, of which an earlier part of the run has completed `begun`.

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
        losses = [name for name in row if name.startswith("loss/")] or ["loss/value"]
        loss = "loss/value" if "loss/value" in losses else losses[0]
        shown = {
            "iteration": f"{iteration}/{self._max_iterations}",
            "return": row["mean_return"],
            "length": row["mean_episode_length"],
            "reward": row["mean_reward"],
            "eval": row.get("eval/return"),
            f"{loss.removeprefix('loss/')}_loss": row.get(loss),
            "std": row["action_std"],
            "lr": row["learning_rate"],
            "steps/s": row["global_steps_per_second"],
            "left": left,
        }
        if shown["eval"] is None:
            del shown["eval"]
        return " ".join(f"{name}={_short(value)}" for name, value in shown.items())

    def close(self) -> None:
        """End the live view, which stays on the terminal."""
        if self._live:
            self._live.close()


def _short(value: object) -> str:
    """Return a number in at most nine characters; other values as they are."""
    if not isinstance(value, float):
        return "-" if value is None else str(value)
    text = f"{value:.4g}"
    return f"{value:.3g}" if "e" in text else text
