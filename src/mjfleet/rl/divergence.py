"""Finds the cause of numbers that are not finite, and flags to continue with. In a worker."""

import math
from collections.abc import Mapping

from mjfleet.rl.checks.rollout_guard import RolloutGuard
from mjfleet.rl.learner import Learner

HUGE = 1e6
"""Observations and rewards beyond it are the task's mistake, whatever the learning rate is."""


class DivergedError(RuntimeError):
    """Training cannot continue, because of numbers that are not finite.

    A resume without a change would fail again. `flags` may avoid this; empty: change the task.
    """

    def __init__(self, message: str, flags: str = "") -> None:
        super().__init__(message)
        self.flags = flags


def check_networks(learner: Learner, iteration: int) -> None:
    """Raise DivergedError if what is learned is not finite. All ranks have the same."""
    networks = learner.networks().values()
    if not all(p.isfinite().all() for network in networks for p in network.parameters()):
        text = f"the policy is not finite; the learning rate is {learner.learning_rate:.3g}"
        raise DivergedError(f"iteration {iteration}: {text}", learner.recovery_flags())


def find_trouble(
    guard: RolloutGuard, learner: Learner, iteration: int, losses: Mapping[str, float]
) -> tuple[str | None, str]:
    """Return what is not finite in this rank's rollout or losses, and flags to continue with."""
    if found := guard.trouble(learner.checked, iteration):
        text, flags = found
        return text, flags or learner.recovery_flags()
    for name, loss in losses.items():
        if not math.isfinite(loss):
            size, what = guard.largest(learner.checked)
            text = f"the {name} loss is {loss}, and the largest number to learn from is {size:.3g}"
            return f"{text}, {what}", learner.recovery_flags() if size < HUGE else ""
    return None, ""
