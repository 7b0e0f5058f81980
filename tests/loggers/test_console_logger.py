"""The lines of `--plain`."""

import pytest

from mjfleet.loggers.console_logger import ConsoleLogger
from mjfleet.loggers.iteration_metrics import IterationMetrics

TERMS: dict[str, float | None] = dict.fromkeys(
    ("linear", "yaw", "upright", "fall", "vertical", "torque"), -0.123456
)


def metrics(iteration: int, size: float, evaluated: float | None) -> IterationMetrics:
    """An iteration whose numbers are as long as `size` is when it is printed."""
    return IterationMetrics(
        iteration=iteration, world_size=64, total_steps=123_456_789_012,
        global_steps_per_second=9_876_543.2, mean_return=size, mean_episode_length=1000.0,
        terms=TERMS, mean_reward=size, task=TERMS, losses={"value": abs(size), "entropy": size},
        learning_rate=1.2345e-05, action_std=abs(size), collect_seconds=1.0, learn_seconds=1.0,
        slowest_rank=63, wait_seconds=size, collective_seconds=size, warnings={},
        evaluation={"return": evaluated, "length": 1000.0},
    )  # fmt: skip


def test_a_line_has_the_ten_numbers_that_matter_in_160_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger = ConsoleLogger(99_999)
    logger.iteration(metrics(99_998, -1.23456e-05, evaluated=-1.23456e-05))
    logger.iteration(metrics(99_999, 12.5, evaluated=None))
    longest, usual = capsys.readouterr().out.splitlines()
    assert len(longest) <= 160
    names = [part.partition("=")[0] for part in longest.split()]
    assert names == [
        "iteration", "return", "length", "reward", "eval", "value_loss", "std", "lr",
        "steps/s", "left",
    ]  # fmt: skip
    values = dict(part.split("=") for part in usual.split())
    assert set(names) - set(values) == {"eval"}  # Only in iterations that had one.
    assert (values["iteration"], values["return"]) == ("99999/99999", "12.5")
    assert (values["lr"], values["steps/s"], values["left"]) == ("1.23e-05", "9876543", "0:00:00")
