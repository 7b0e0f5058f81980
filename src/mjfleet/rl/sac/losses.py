"""The numbers of SAC's iterations, for metrics and for a warning. Runs in a worker."""

import time
from functools import partial

import torch

from mjfleet.config import SACConfig
from mjfleet.sim.deferred import Deferred
from mjfleet.utils.console import print_line

NAMES = "critic", "actor", "entropy", "q", "beyond_support"
OF_ACTOR = "actor", "entropy"
CLIPPED, CLIPPED_ITERATIONS = 0.01, 20
"""Share of the predicted return beyond the support, and for how long, that is warned of."""
SATURATED = 0.99
"""Share of its limit beyond which an action counts as saturated."""
ONE_STEP = (
    "warning: an episode has one step, and sac does not learn from steps that time out: it learns "
    "only from those that terminated() ends"
)


class Losses:
    """Means over the updates of an iteration."""

    def __init__(self, config: SACConfig, warns: bool, device: str) -> None:
        self._config, self._warns = config, warns
        self.totals = torch.zeros(len(NAMES), device=device)
        """Sums over the updates since `begin`, by NAMES."""
        self._newest = dict.fromkeys(NAMES, 0.0)
        """Each that of the newest iteration with updates that have it."""
        self._measured_at, self._clipped = time.perf_counter(), 0

    def begin(self) -> None:
        self.totals.zero_()

    def means(
        self, updates: range, temperature: torch.Tensor, scale: torch.Tensor
    ) -> Deferred[dict[str, float]]:
        """Return the mean losses of an iteration, given the numbers of its updates.

        An iteration without updates has the losses of the previous one.
        """
        now = time.perf_counter()
        seconds, self._measured_at = now - self._measured_at, now
        numbers = torch.cat((self.totals, torch.stack((temperature, scale))))
        return Deferred(numbers, partial(self._decode, updates, seconds))

    def _decode(self, updates: range, seconds: float, found: list[float]) -> dict[str, float]:
        *totals, temperature, scale = found
        of_actor = sum(number % self._config.actor_delay == 0 for number in updates)
        counts = dict.fromkeys(NAMES, len(updates)) | dict.fromkeys(OF_ACTOR, of_actor)
        sums = zip(NAMES, totals, strict=True)
        self._newest |= {name: x / counts[name] for name, x in sums if counts[name]}
        self._clipped = self._clipped + 1 if self._newest["beyond_support"] > CLIPPED else 0
        if self._clipped == CLIPPED_ITERATIONS and self._warns:
            print_line(
                f"warning: more than {CLIPPED:.0%} of the returns that critics are to predict have "
                f"been beyond their support in {CLIPPED_ITERATIONS} iterations: raise "
                f"--agent.algorithm.support, which is {self._config.support:g}."
            )
        others = {"temperature": temperature, "reward_scale": scale}
        return self._newest | others | {"updates_per_second": len(updates) / seconds}


def describe_actions(actions: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return metrics `()` of `(steps, num_envs, num_actions)`, as shares of their limits."""
    changes = actions.diff(dim=0).abs()
    found = {"saturated_actions": (actions.abs() > SATURATED).float().mean()}
    return found | {"action_rate": changes.sum() / max(1, changes.numel())}
