"""`mjfleet bench` on the command line: help, mistakes, and real measurements, tiny ones."""

from pathlib import Path

import pytest

from ..conftest import POISON, Run
from .tiny import measured


@pytest.mark.slow
def test_throughput_says_where_the_time_goes(run: Run, tmp_path: Path) -> None:
    data = measured(run, tmp_path, "throughput", "cartpole-balance", "--num-envs", "16")
    (sample,) = data["samples"]
    assert sample["num_envs"] == 16
    end_to_end, collecting, engine, ratio = sample["speeds"].values()
    assert engine > collecting > end_to_end > 0
    assert 0 < ratio < 1
    assert sum(sample["shares"].values()) == pytest.approx(1)
    assert all(share > 0 for share in sample["shares"].values())
    speeds, times, shares = data["tables"]
    assert speeds["rows"][0][0] == "16"
    assert times["columns"] == shares["columns"]


@pytest.mark.slow
def test_startup_says_what_the_first_iteration_waits_for(run: Run, tmp_path: Path) -> None:
    data = measured(run, tmp_path, "startup", "cartpole-balance", "--num-envs", "16")
    *helps, first = data["samples"]
    assert all(0 < sample["seconds"] < first["seconds"] for sample in helps)
    assert sum(first["phases"].values()) == pytest.approx(first["seconds"])
    assert all(seconds > 0 for seconds in first["phases"].values())


@pytest.mark.parametrize("what", ["throughput", "scaling", "startup"])
def test_help_is_light(run: Run, what: str) -> None:
    result = run("mjfleet", "bench", what, "--help", prelude=POISON)
    assert result.returncode == 0, result.stderr
    assert "--output" in result.stdout
    assert what in run("mjfleet", "bench", "--help", prelude=POISON).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["speed"], ["no benchmark `speed`", "throughput", "scaling"]),
        (["throughput", "cartpole"], ["no task `cartpole`", "cartpole-balance"]),
        (["throughput", "cartpole-balance", "--iterations", "1"], ["--iterations is 1"]),
        (["scaling", "cartpole-balance", "--workers", "1000"], ["--workers is 1000"]),
        (["startup", "cartpole-balance", "--output", "/dev/null/x"], ["--output /dev/null/x"]),
    ],
)
def test_a_mistake_is_one_message(
    run: Run, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    result = run("mjfleet", "bench", *arguments, prelude=POISON, CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 2, result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert all(word in result.stderr for word in words), result.stderr
    assert not result.stdout
    assert not list(tmp_path.iterdir())
