"""Shows iterations on the terminal, live or as lines, and a remedy for each warning. In rank 0."""

import sys
import time
from datetime import timedelta
from typing import Literal

from mjfleet.loggers.iteration_metrics import IterationMetrics
from mjfleet.loggers.live_terminal import LiveView
from mjfleet.utils.console import print_line

REMEDIES = {
    "HFIELD": "contacts with a height field were dropped, make its grid coarser",
    **dict.fromkeys(
        ("BADQPOS", "BADQVEL", "BADQACC"),
        "a number there was huge or not finite, and MuJoCo reset the world: the task wrote it, "
        "or the simulation went unstable and needs a smaller timestep",
    ),
    "NAN": "a state, reward or observation there was not finite, and the world was reset; "
    "--on-nan stop would end the run and leave a dump of it",
}
"""What to do about a kind of warning."""
OTHER_REMEDY = "see mjtWarning in MuJoCo's documentation, OverflowType in MuJoCo-Warp's"


class ConsoleLogger:
    """Shows each iteration, each overflow of a buffer, and each other kind of warning once.

    Args:
        max_iterations: number of iterations of the run.
        begun: number of iterations that an earlier part of the run has completed.
        view: `live` needs a terminal; without one the view is plain.
        task: title of the live view.
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
        self._warned: set[str] = set()
        self._live = None
        if view == "live" and sys.stdout.isatty():
            self._live = LiveView(task, max_iterations, begun)

    def iteration(self, metrics: IterationMetrics) -> None:
        found = {kind: f"in {worlds} worlds" for kind, worlds in metrics.warnings.items()}
        if metrics.nan_resets:
            found["NAN"] = f"{metrics.nan_resets} times"
        for kind, where in found.items():
            overflow = metrics.overflows.get(kind)
            if overflow or kind not in self._warned:
                self._warned.add(kind)
                remedy = overflow or REMEDIES.get(kind, OTHER_REMEDY)
                print_line(f"warning: {kind} {where}; {remedy}")
        if self._live:
            self._live.iteration(metrics)
        elif self._view != "quiet":
            print_line(self._line(metrics))

    def _line(self, metrics: IterationMetrics) -> str:
        """Return the numbers that matter most, in at most 160 characters; metrics.csv has all."""
        seconds = time.perf_counter() - self._start
        pace = seconds / (metrics.iteration - self._begun)
        left = timedelta(seconds=round(pace * (self._max_iterations - metrics.iteration)))
        loss = "value" if "value" in metrics.losses else next(iter(metrics.losses), "value")
        shown = {
            "iteration": f"{metrics.iteration}/{self._max_iterations}",
            "return": metrics.mean_return,
            "length": metrics.mean_episode_length,
            "reward": metrics.mean_reward,
            "eval": metrics.evaluation.get("return"),
            f"{loss}_loss": metrics.losses.get(loss),
            "std": metrics.action_std,
            "lr": metrics.learning_rate,
            "steps/s": round(metrics.global_steps_per_second),
            "left": left,
        }
        if shown["eval"] is None:
            del shown["eval"]
        return " ".join(f"{name}={_short(value)}" for name, value in shown.items())

    def close(self) -> None:
        """End the live view."""
        if self._live:
            self._live.close()


def _short(value: object) -> str:
    """Return a number in at most nine characters; other values as they are."""
    if not isinstance(value, float):
        return "-" if value is None else str(value)
    text = f"{value:.4g}"
    return f"{value:.3g}" if "e" in text else text
