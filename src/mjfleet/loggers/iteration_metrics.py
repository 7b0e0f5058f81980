"""The numbers of an iteration over all workers: a row of metrics.csv. Each worker has them."""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class IterationMetrics:
    """One iteration. A mean over episodes is None until the first episode has ended."""

    iteration: int  #: Iterations completed, including this one.
    world_size: int  #: Number of workers. All other fields are totals or means over all of them.
    total_steps: int  #: Environment steps since the run began, summed over all environments.
    global_steps_per_second: float  #: Environment steps, by the time since the last iteration.
    mean_return: float | None  #: Mean sum of rewards over the newest episodes.
    mean_episode_length: float | None  #: Mean length of the same episodes, in environment steps.
    terms: dict[str, float | None]  #: Mean sum of each reward term over the same episodes.
    mean_reward: float  #: Mean reward per step in this iteration.
    task: dict[str, float | None]  #: The task's own metrics. None: the divisor was zero.
    losses: dict[str, float]
    learning_rate: float
    action_std: float  #: Standard deviation of the action, averaged over its components.
    collect_seconds: float
    learn_seconds: float
    slowest_rank: int  #: The rank that waited least for the others.
    wait_seconds: float  #: Mean time for which the other ranks waited for the slowest one.
    collective_seconds: float  #: The slowest rank's in collectives, where it waits for no other.
    warnings: dict[str, int]  #: Worlds with a warning, by kind. Kinds without any are absent.
    overflows: dict[str, str] = field(default_factory=dict)  #: What each kind of overflow did.
    nan_resets: int = 0  #: Number of resets because a state, reward or observation was not finite.
    #: Results of the evaluation, by column without `eval/`. None: no evaluation was due.
    evaluation: dict[str, float | None] = field(default_factory=dict)
    buffers: dict[str, float | None] = field(default_factory=dict)  #: Empty on the native engine.
    gpu: dict[str, float | None] = field(default_factory=dict)  #: Empty on CPUs.

    def row(self) -> dict[str, float | int | None]:
        """Return the columns of metrics.csv. Every row of a run has the same names."""
        return {
            "iteration": self.iteration,
            "world_size": self.world_size,
            "total_steps": self.total_steps,
            "steps_per_second": round(self.global_steps_per_second / self.world_size),
            "global_steps_per_second": round(self.global_steps_per_second),
            "mean_return": self.mean_return,
            "mean_episode_length": self.mean_episode_length,
            "mean_reward": self.mean_reward,
            **{f"reward/{name}": value for name, value in self.terms.items()},
            **{f"task/{name}": value for name, value in self.task.items()},
            **{f"eval/{name}": value for name, value in self.evaluation.items()},
            **{f"loss/{name}": value for name, value in self.losses.items()},
            "learning_rate": self.learning_rate,
            "action_std": self.action_std,
            "collect_seconds": self.collect_seconds,
            "learn_seconds": self.learn_seconds,
            "slowest_rank": self.slowest_rank,
            "wait_seconds": self.wait_seconds,
            "collective_seconds": self.collective_seconds,
            "sim_warnings": sum(self.warnings.values()),
            "nan_resets": self.nan_resets,
            **self.buffers,
            **self.gpu,
        }
