"""The terminal of a run: one line per iteration, for eyes on a terminal, for grep elsewhere."""

import sys
import time
from datetime import timedelta

from mjfleet.env import NAN
from mjfleet.rl.metrics import IterationMetrics
from mjfleet.tell import tell

_HEADER_EVERY = 20
_HEADER = (
    f"{'iteration':>11} {'return':>10} {'length':>7} {'reward/step':>11} {'action std':>10} "
    f"{'value loss':>10} {'steps/s':>9} {'left':>8}"
)
_FLEET_HEADER = f" {'waited':>7} for"


class Progress:
    """Prints iterations as they end."""

    def __init__(self, max_iterations: int, begun: int = 0) -> None:
        """Begin after so many iterations of an earlier part of the run."""
        self._max_iterations = max_iterations
        self._begun = begun
        self._on_terminal = sys.stdout is not None and sys.stdout.isatty()
        self._start = time.perf_counter()
        self._warned: set[str] = set()

    def iteration(self, metrics: IterationMetrics) -> None:
        """Print an iteration, and each new kind of trouble in the simulation once."""
        for kind, worlds in metrics.warnings.items():
            if kind not in self._warned:
                self._warned.add(kind)
                where = f"{worlds} times" if kind == NAN else f"in {worlds} worlds"
                tell(f"warning: {kind} {where}; {_remedy(kind)}")
        if self._on_terminal:
            if (metrics.iteration - self._begun) % _HEADER_EVERY == 1:
                tell(_HEADER + (_FLEET_HEADER if metrics.world_size > 1 else ""))
            tell(self._columns(metrics))
        else:
            row = metrics.row() | {"iteration": f"{metrics.iteration}/{self._max_iterations}"}
            tell(" ".join(f"{name}={_short(value)}" for name, value in row.items()))

    def _columns(self, m: IterationMetrics) -> str:
        done = f"{m.iteration}/{self._max_iterations}"
        each = (time.perf_counter() - self._start) / (m.iteration - self._begun)
        left = timedelta(seconds=round(each * (self._max_iterations - m.iteration)))
        return (
            f"{done:>11} {_number(m.mean_return, 10, 2)} {_number(m.mean_episode_length, 7, 0)} "
            f"{m.mean_reward:11.4f} {m.action_std:10.3f} {m.losses['value']:10.4f} "
            f"{m.global_steps_per_second:9,.0f} {left!s:>8}"
        ) + (f" {m.wait_seconds:6.3f}s rank {m.slowest_rank}" if m.world_size > 1 else "")


def _remedy(kind: str) -> str:
    """What to do about a warning of the simulation."""
    if kind == "HFIELD":
        return "contacts with a height field were dropped, make its grid coarser"
    if kind in ("NARROWPHASE", "BROADPHASE", "CCD"):
        return "contacts were dropped, raise --env.nconmax"
    if kind in ("NEFC", "NJMAX_NNZ"):
        return "constraints were dropped, raise --env.njmax"
    if kind in ("BADQPOS", "BADQVEL", "BADQACC"):
        return (
            "a number there was huge or not finite, and MuJoCo reset the world: the task wrote it, "
            "or the simulation went unstable and needs a smaller timestep"
        )
    if kind == NAN:
        return (
            "a state, reward or observation there was not finite, and the world was reset; "
            "--on-nan stop would end the run and leave a dump of it"
        )
    return "see mjtWarning in MuJoCo's documentation, OverflowType in MuJoCo-Warp's"


def _number(value: float | None, width: int, digits: int) -> str:
    return "-".rjust(width) if value is None else f"{value:{width}.{digits}f}"


def _short(value: float | int | str | None) -> str:
    if value is None:
        return "-"
    return f"{value:.5g}" if isinstance(value, float) else str(value)
