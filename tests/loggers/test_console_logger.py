"""The lines of `--plain`."""

import pytest

from mjfleet.loggers.console_logger import ConsoleLogger
from mjfleet.loggers.logger import Row

TERMS = "linear", "yaw", "upright", "fall", "vertical", "torque"


def make_row(iteration: int, size: float, evaluated: float | None) -> Row:
    """An iteration whose numbers are as long as `size` is when it is printed."""
    return {
        "iteration": iteration, "world_size": 64, "total_steps": 123_456_789_012,
        "global_steps_per_second": 9_876_543, "mean_return": size, "mean_episode_length": 1000.0,
        "mean_reward": size, **dict.fromkeys((f"reward/{name}" for name in TERMS), -0.123456),
        "eval/return": evaluated, "loss/value": abs(size), "loss/entropy": size,
        "learning_rate": 1.2345e-05, "action_std": abs(size), "collect_seconds": 1.0,
        "learn_seconds": 1.0, "slowest_rank": 63, "wait_seconds": size, "collective_seconds": size,
    }  # fmt: skip


def test_a_line_has_the_ten_numbers_that_matter_in_160_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger = ConsoleLogger(99_999)
    logger.iteration(make_row(99_998, -1.23456e-05, evaluated=-1.23456e-05))
    logger.iteration(make_row(99_999, 12.5, evaluated=None))
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
