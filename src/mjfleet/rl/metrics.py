"""What is known of an iteration when it ends: one row of metrics.csv."""

from collections import deque
from dataclasses import dataclass

from mjfleet.env import EpisodeStatistics


@dataclass(frozen=True, kw_only=True)
class IterationMetrics:
    """One iteration. None stands for a mean over episodes of which none has ended yet."""

    iteration: int
    """Iterations completed, this one included."""
    total_steps: int
    """Environment steps of all worlds so far."""
    steps_per_second: float
    """Environment steps of all worlds per second, everything between two iterations included."""
    mean_return: float | None
    """Mean sum of rewards of the newest episodes."""
    mean_episode_length: float | None
    """Mean length of the same episodes, in environment steps."""
    terms: dict[str, float | None]
    """Mean sum of each reward term over the same episodes."""
    mean_reward: float
    """Mean reward per step in this iteration."""
    losses: dict[str, float]
    learning_rate: float
    action_std: float
    """Standard deviation of the action, mean over its components."""
    collect_seconds: float
    learn_seconds: float
    warnings: dict[str, int]
    """Worlds in trouble during this iteration, by kind; see Simulation.warnings."""

    def row(self) -> dict[str, float | int | None]:
        """The columns of metrics.csv; the same names in every row of a run."""
        return {
            "iteration": self.iteration,
            "total_steps": self.total_steps,
            "steps_per_second": round(self.steps_per_second),
            "mean_return": self.mean_return,
            "mean_episode_length": self.mean_episode_length,
            "mean_reward": self.mean_reward,
            **{f"reward/{name}": value for name, value in self.terms.items()},
            **{f"loss/{name}": value for name, value in self.losses.items()},
            "learning_rate": self.learning_rate,
            "action_std": self.action_std,
            "collect_seconds": self.collect_seconds,
            "learn_seconds": self.learn_seconds,
            "sim_warnings": sum(self.warnings.values()),
        }


class EpisodeWindow:
    """Means over the newest iterations in which, together, at least `episodes` episodes ended.

    Episodes that end in one iteration are few where they are long; the means would jump.
    """

    def __init__(self, episodes: int = 100) -> None:
        self._wanted = episodes
        self._newest: deque[EpisodeStatistics] = deque()

    def add(self, statistics: EpisodeStatistics) -> None:
        """Take in an iteration, and let go of the oldest ones that are no longer needed."""
        if statistics.episodes:
            self._newest.append(statistics)
        while self._count() - self._oldest() >= self._wanted:
            self._newest.popleft()

    def means(self, term_names: tuple[str, ...]) -> dict[str, float | None]:
        """Mean "return" and "length", and each reward term under "reward/" and its name."""
        count = self._count()
        sums = {
            "return": sum(s.returns for s in self._newest),
            "length": sum(s.lengths for s in self._newest),
        } | {f"reward/{name}": sum(s.terms[name] for s in self._newest) for name in term_names}
        return {name: value / count if count else None for name, value in sums.items()}

    def _count(self) -> int:
        return sum(s.episodes for s in self._newest)

    def _oldest(self) -> int:
        return self._newest[0].episodes if self._newest else 0
