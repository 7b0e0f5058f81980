"""What numbers that are not finite, or a policy that no longer explores, say of a run's settings.

Runs in a worker.
"""

import logging
import math
from collections.abc import Mapping

from mjfleet.config import AgentConfig
from mjfleet.loggers.logger import Row
from mjfleet.nan_dump.nan_guard import RolloutGuard
from mjfleet.rl.algorithm import Algorithm

HUGE = 1e6
"""Observations and rewards beyond it are the task's mistake, whatever the learning rate is."""
LEAST_STD = 1e-6  # rsl_rl's least standard deviation of an action.
USUAL_STD = 1e-3  # A limit above this one is set in order to explore.
GROWTH = 30  # A standard deviation that is so many times the initial one hides the policy.
USUAL_RATE = 1e-3  # A learning rate with which training may continue.

logger = logging.getLogger(__name__)


class DivergedError(RuntimeError):
    """Training cannot continue, because of numbers that are not finite.

    It would fail again as it was. `flags`: with which it may continue; empty: with another task.
    """

    def __init__(self, message: str, flags: str = "") -> None:
        super().__init__(message)
        self.flags = flags


def find_trouble(
    guard: RolloutGuard, alg: Algorithm, iteration: int, losses: Mapping[str, float]
) -> tuple[str | None, str]:
    """Return what is not finite in this rank's rollout or losses, and flags to continue with."""
    if found := guard.trouble(alg.storage, iteration):
        text, flags = found
        return text, flags or slower(alg)
    for name, loss in losses.items():
        if not math.isfinite(loss):
            size, what = guard.largest(alg.storage)
            text = f"the {name} loss is {loss}, and the largest number to learn from is {size:.3g}"
            return f"{text}, {what}", slower(alg) if size < HUGE else ""
    return None, ""


def slower(alg: Algorithm) -> str:
    """Return the flags of a learning rate that is lower than an algorithm's."""
    rate, flag = min(alg.learning_rate / 10, USUAL_RATE), "--agent.algorithm."
    return f"{flag}schedule fixed {flag}learning-rate {rate:.1g}"


class StdWarning:
    """Says once that the standard deviation of actions is one with which nothing is learned."""

    def __init__(self, agent: AgentConfig) -> None:
        config = agent.actor.distribution
        low = max(config.std_range[0], LEAST_STD)
        self._low = 0.0 if agent.distils or low > USUAL_STD else 1.01 * low
        self._high = GROWTH * config.init_std
        self._is_due = True

    def look(self, row: Row) -> None:
        """Look at an iteration."""
        std = row["action_std"]
        assert std is not None
        if self._is_due and not self._low < std < self._high:
            self._is_due = False
            logger.warning(
                "iteration %s: the standard deviation of actions is %.3g: the policy %s. The "
                "learning rate is %.3g: begin anew with a lower one, or with narrower limits "
                "--agent.actor.distribution.std-range.",
                *(row["iteration"], std),
                "explores no more" if std <= self._low else "acts at random",
                row["learning_rate"],
            )
