"""What numbers that are not finite say of a run's settings. Runs in a worker."""

import math
from collections.abc import Mapping

from mjfleet.rl.algorithm import Algorithm
from mjfleet.rl.rollout_guard import RolloutGuard

HUGE = 1e6
"""Observations and rewards beyond it are the task's mistake, whatever the learning rate is."""
USUAL_RATE = 1e-3  # A learning rate with which training may continue.


class DivergedError(RuntimeError):
    """Training cannot continue, because of numbers that are not finite.

    It would fail again as it was. `flags`: with which it may continue; empty: with another task.
    """

    def __init__(self, message: str, flags: str = "") -> None:
        super().__init__(message)
        self.flags = flags


def check_networks(alg: Algorithm, iteration: int) -> None:
    """Raise DivergedError if what is learned is not finite. All ranks have the same."""
    if not all(p.isfinite().all() for p in alg.gradient.parameters):
        text = f"the policy is not finite; the learning rate is {alg.learning_rate:.3g}"
        raise DivergedError(f"iteration {iteration}: {text}", lower_rate_flags(alg))


def find_trouble(
    guard: RolloutGuard, alg: Algorithm, iteration: int, losses: Mapping[str, float]
) -> tuple[str | None, str]:
    """Return what is not finite in this rank's rollout or losses, and flags to continue with."""
    if found := guard.trouble(alg.storage, iteration):
        text, flags = found
        return text, flags or lower_rate_flags(alg)
    for name, loss in losses.items():
        if not math.isfinite(loss):
            size, what = guard.largest(alg.storage)
            text = f"the {name} loss is {loss}, and the largest number to learn from is {size:.3g}"
            return f"{text}, {what}", lower_rate_flags(alg) if size < HUGE else ""
    return None, ""


def lower_rate_flags(alg: Algorithm) -> str:
    """Return the flags of a learning rate that is lower than an algorithm's."""
    rate, flag = min(alg.learning_rate / 10, USUAL_RATE), "--agent.algorithm."
    return f"{flag}schedule fixed {flag}learning-rate {rate:.1g}"
