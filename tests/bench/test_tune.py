"""`mjfleet tune`: which number of environments is the answer, and what cannot be measured."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mjfleet.bench.tune import GAIN, Point, choose, is_done

from ..conftest import POISON, Output, Refusal, Run
from ..launch.workers import write_noisy

TUNE = ("mjfleet", "tune", "noisy", "--tasks-dir", "tasks", "--gpu-ids", "None")


def curve(*speeds: float) -> list[Point]:
    """What 256 environments, 512 and so on are like."""
    return [Point(256 << index, speed, 1.0, 1.0) for index, speed in enumerate(speeds)]


@pytest.mark.parametrize(
    ("speeds", "answer", "done"),
    [
        ([100], 256, False),
        ([100, 190], 512, False),
        ([100, 104], 256, False),  # The machine may have been busy.
        ([100, 50, 190], 1024, False),
        ([100, 104, 104], 256, True),
        ([100, 190, 150, 199], 512, True),
        ([100, 104, 108], 512, False),
    ],
)
def test_measuring_ends_where_two_doublings_gain_little(speeds, answer, done) -> None:
    assert choose(curve(*speeds)).num_envs == answer
    assert is_done(curve(*speeds)) == done


@given(st.lists(st.floats(1, 1e7), min_size=1, max_size=9))
def test_the_answer_is_the_smallest_number_that_is_nearly_the_fastest(speeds) -> None:
    chosen = speeds.index(choose(curve(*speeds)).steps_per_second)
    assert GAIN * speeds[chosen] >= max(speeds)
    assert all(GAIN * speed < max(speeds) for speed in speeds[:chosen])


@pytest.mark.slow
def test_numbers_for_which_there_is_no_memory_end_the_curve(output: Output, tmp_path: Path) -> None:
    write_noisy(
        tmp_path, 'if self.num_envs > 512: raise RuntimeError("Failed to allocate 8 bytes")'
    )
    shown = output(*TUNE, "--cpu-workers", "2", "--agent.num-steps-per-env", "8")
    head, *measured, missing, fastest = shown.splitlines()
    assert head.split() == ["environments", "per", "worker", "steps/s", "memory"]
    assert [line.split()[0] for line in measured] == ["256", "512"]
    assert all(float(line.split()[1].replace(",", "")) > 0 for line in measured)
    assert missing.split()[0] == "1024"
    assert "there is too little memory" in missing
    assert fastest in ("fastest: --env.num-envs 256", "fastest: --env.num-envs 512")
    assert [path.name for path in tmp_path.iterdir()] == ["tasks"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setup", "problem"),
    [
        ('raise RuntimeError("Failed to allocate 8 bytes")', "there is too little memory"),
        ("self.motor", "has no attribute 'motor'"),
    ],
)
def test_a_task_that_does_not_train_is_one_message(
    run: Run, tmp_path: Path, setup: str, problem: str
) -> None:
    write_noisy(tmp_path, setup)
    result = run(*TUNE, RANK="0")
    assert result.returncode == 2
    assert result.stderr.startswith("error: noisy does not train with 256 environments: ")
    assert result.stderr.count("error: ") == 1
    assert problem in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["tasks"]


def test_a_mistake_is_one_message(refusal: Refusal) -> None:
    for flag, shown in (("--seeds", "--seeds"), ("--num-envs", "--env.num-envs")):
        assert f"leave out {shown}" in refusal("tune", "cartpole-balance", flag, "3")
    for flag, value in (
        ("--video-interval", "9"),
        ("--eval-interval", "9"),
        ("--per-run", "1"),
        ("--agent.logger", "csv"),
    ):
        assert f"leave out {flag}" in refusal("tune", "cartpole-balance", flag, value)
    sac = refusal("tune", "cartpole-balance", "--agent.algorithm.name", "sac")
    assert "updates take the time" in sac
    assert "--gpu-ids 7" in refusal("tune", "cartpole-balance", "--gpu-ids", "7")


def test_help_says_what_is_measured(run: Run, output: Output) -> None:
    shown = output("mjfleet", "tune", "cartpole-balance", "--help", prelude=POISON)
    assert "[--gpu-ids ...] [--cpu-workers N]" in shown
    alone = run("mjfleet", "tune", prelude=POISON)
    assert (alone.returncode, alone.stdout) == (2, shown)
