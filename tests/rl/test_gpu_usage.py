"""What is said of GPUs that are mostly idle."""

from dataclasses import replace

import pytest

from mjfleet.loggers.iteration_metrics import IterationMetrics
from mjfleet.rl.gpu_usage import LOOKED_AT, IdleGpuWarning

STEPS = 1000
ROW = IterationMetrics(
    iteration=1, world_size=2, total_steps=STEPS, global_steps_per_second=STEPS, mean_return=None,
    mean_episode_length=None, terms={}, mean_reward=0.0, task={}, losses={}, learning_rate=0.1,
    action_std=1.0, collect_seconds=0.6, learn_seconds=0.4, slowest_rank=1, wait_seconds=0.0,
    collective_seconds=0.0, warnings={}, gpu={"gpu_utilization": 59.0},
)  # fmt: skip


def look(row: IterationMetrics, iterations: int = 2 * LOOKED_AT) -> None:
    warning = IdleGpuWarning()
    for iteration in range(1, iterations + 1):
        warning.look(replace(row, iteration=iteration, total_steps=iteration * STEPS))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (ROW, "Collecting takes 60% of it"),
        (replace(ROW, collect_seconds=0.3, learn_seconds=0.7), "Learning takes 70% of it"),
        (replace(ROW, wait_seconds=0.3), "For 30% of it, the other workers wait for rank 1"),
        (replace(ROW, collective_seconds=0.3), "For 30% of it, workers add up gradients"),
        (replace(ROW, learn_seconds=0.1), "For 30% of it, neither"),
    ],
)
def test_idle_gpus_are_one_warning_with_the_likely_cause(
    row: IterationMetrics, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    look(row)
    (record,) = caplog.records
    assert "the GPUs were busy for 59% of the time" in record.message
    assert words in record.message


@pytest.mark.parametrize("gpu", [{"gpu_utilization": 60.0}, {"gpu_utilization": None}, {}])
def test_busy_gpus_unknown_ones_and_cpus_are_no_warning(
    gpu: dict[str, float | None], caplog: pytest.LogCaptureFixture
) -> None:
    look(replace(ROW, gpu=gpu))
    look(ROW, iterations=LOOKED_AT)
    assert not caplog.records
