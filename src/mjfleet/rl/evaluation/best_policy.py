"""Decides by evaluations which policy of a run is the best. Runs in a worker."""

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mjfleet.env.episode_statistics import Sums
from mjfleet.rl.evaluation.evaluator import PREFIX, lost_contacts

logger = logging.getLogger(__name__)


class BestPolicy:
    """The greatest return of a run's evaluations, and whether the current policy reached it."""

    def __init__(self, judged_by: Mapping[str, Any] | None, is_first_rank: bool) -> None:
        """Begin without an evaluation. `judged_by` is the evaluator's; the first rank warns."""
        self.judged_by, self._warns = judged_by, is_first_rank
        self.mean_return: float | None = None
        self._before: float | None = None  # The greatest before the current policy's.
        self.is_current = False

    @property
    def least(self) -> float:
        """What a return has to exceed to be the greatest."""
        return -math.inf if self.mean_return is None else self.mean_return

    def judge(self, iteration: int, sums: Sums, ranks: Sequence[Mapping[str, float]]) -> Sums:
        """Compare an iteration's evaluation, if there was one, with the best one so far.

        An evaluation that lost contacts is never the best.

        Args:
            sums: of all ranks, by name.
            ranks: the other values of each rank. `best_return`, its `least`, is the first one's.

        Returns:
            The sums. Those of an evaluation with numbers that are not finite are 0.
        """
        self.is_current = False
        reached, episodes = sums.get(f"{PREFIX}return", (0.0, 0.0))
        if not math.isfinite(reached):
            if self._warns:
                logger.warning(
                    "iteration %s: an evaluation had numbers that are not finite, and is ignored; "
                    "training continues",
                    iteration,
                )
            spoilt = {n for n in sums if n.startswith(PREFIX) and n != f"{PREFIX}seconds"}
            return {**sums, **dict.fromkeys(spoilt, (0.0, 0.0))}
        if episodes and not lost_contacts(ranks) and reached / episodes > ranks[0]["best_return"]:
            self._before, self.mean_return = self.mean_return, reached / episodes
            self.is_current = True
        return sums

    def forget(self) -> None:
        """Forget the return of the current policy, which could not be saved."""
        self.mean_return = self._before

    def take(self, path: Path, saved: Mapping[str, Any]) -> None:
        """Take the return of the best checkpoint, at `path`, if it was evaluated as now.

        The first rank calls this.
        """
        judged_by = saved.get("judged_by", self.judged_by)
        if self.judged_by is None or judged_by == self.judged_by:
            self.mean_return = saved.get("best_return")
        else:
            logger.warning(
                "%s was evaluated in other episodes (%s, now %s). The next evaluation replaces it.",
                *(path, judged_by, self.judged_by),
            )
