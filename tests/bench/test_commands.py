"""`mjfleet bench` on the command line: help, mistakes, and real measurements, tiny ones."""

import fcntl
import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ..cli.test_cli import POISON
from ..conftest import Run
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


@pytest.mark.slow
def test_another_library_learns_in_turn(run: Run, tmp_path: Path) -> None:
    flags = ("--peer", "rl_games", "--num-envs", "16")
    data = measured(run, tmp_path, "learning", "cartpole-balance", *flags)
    assert [sample["who"] for sample in data["samples"]] == ["mjfleet", "rl_games"]
    ours, theirs = ([row["loss/value"] for row in s["iterations"]] for s in data["samples"])
    assert len(ours) == len(theirs) == 2
    assert ours != theirs
    assert "rl_games" in data["versions"]
    (plot,) = data["plots"]
    assert (tmp_path / "benchmarks" / plot).is_file()


@pytest.mark.slow
def test_training_stops_once_all_conditions_hold(run: Run, tmp_path: Path) -> None:
    both = ("--until", "mean_reward > 0.0", "learning_rate<1")
    data = measured(
        run, tmp_path, "learning", "cartpole-balance", "--num-envs", "16", "--peer", "none", *both,
        further=("--iterations", "2000", "--seed", "7", "--repeats", "2"),
    )  # fmt: skip
    first, second = (sample["iterations"] for sample in data["samples"])
    assert all(10 <= len(rows) < 2000 for rows in (first, second))
    assert first[0]["mean_reward"] != second[0]["mean_reward"]
    (table,) = data["tables"]
    ((who, samples, seconds),) = table["rows"]
    assert who == "mjfleet"
    assert samples["low"] == samples["high"] == 10 * 16 * 32 / 1e6
    assert seconds["low"] == min(rows[9]["seconds"] for rows in (first, second))
    assert seconds["high"] == max(rows[9]["seconds"] for rows in (first, second))
    (plot,) = data["plots"]
    assert (tmp_path / "benchmarks" / plot).is_file()


@pytest.mark.slow
def test_reference_runs_are_added_to_those_of_other_tasks(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    other = {
        "task": "another", "seed": 3, "steps": 2.0, "minutes": 1.0, "return": 5.0,
        "policy": {"return": 6.0, "task/error": 0.25}, "threads": 2, "commit": "abc",
        "curve": [[1, 2], [4, 5]],
    }  # fmt: skip
    steps = 36 * 128 * 32 / 1e6
    same = {**other, "task": "cartpole-balance", "steps": steps}
    longer = {**same, "steps": 2.0}
    samples = [other, longer, same, {**same, "seed": 7}]
    (folder / "reference.json").write_text(json.dumps({"samples": samples}))
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with ThreadPoolExecutor() as pool:
        command = pool.submit(
            measured, run, tmp_path, "reference", "cartpole-balance",
            further=("--iterations", "36", "--seed", "7", "--episodes", "4"),
        )  # fmt: skip
        waits = re.compile(rf"-> FLOCK .*:{folder.stat().st_ino} ")
        while not waits.search(Path("/proc/locks").read_text()) and not command.done():
            time.sleep(0.1)
        # Another process adds runs in the meantime.
        samples.append({**other, "seed": 4})
        (folder / "reference.json").write_text(json.dumps({"samples": samples}))
        os.close(lock)
        data = command.result()
    assert data["samples"].pop(1) == samples[-1]
    assert data["samples"][:2] == [other, same]
    (sample,) = data["samples"][2:]
    assert (sample["task"], sample["seed"]) == ("cartpole-balance", 7)
    curve, returns = sample["curve"]
    assert curve[-1] == sample["steps"] == steps
    assert min(returns) < sample["return"] < max(returns)
    (table,) = data["tables"]
    first, second = table["rows"]
    assert first == ["another", *first[1:5], "error 0.250", "2", "2", "abc"]
    assert second[0] == "cartpole-balance"
    assert second[4]["low"] == min(6.0, sample["policy"]["return"]) > 0
    assert second[6] == "2"
    assert (folder / "reference.png").is_file()


def test_a_file_that_holds_no_reference_runs_is_kept(run: Run, tmp_path: Path) -> None:
    content = '{"samples": [{"task": "cartpole-balance"}]}'
    file = tmp_path / "benchmarks" / "reference.json"
    file.parent.mkdir()
    file.write_text(content)
    result = run("mjfleet", "bench", "reference", "cartpole-balance", "--gpu-ids", "None")
    assert result.returncode == 2
    assert "benchmarks/reference.json is no result of `mjfleet bench reference`" in result.stderr
    assert file.read_text() == content


@pytest.mark.slow
def test_a_metric_that_does_not_exist_ends_the_first_run(run: Run, tmp_path: Path) -> None:
    result = run(
        "mjfleet", "bench", "learning", "cartpole-balance", "--gpu-ids", "None", "--num-envs", "16",
        "--peer", "none", "--iterations", "2000", "--until", "mean_reward > 2", "task/speed < 1",
    )  # fmt: skip
    assert result.returncode == 2
    assert all(name in result.stderr for name in ("'task/speed < 1'", "mean_reward", "loss/value"))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_stock_rsl_rl_trains_the_same_in_turn(run: Run, tmp_path: Path) -> None:
    data = measured(run, tmp_path, "peer", "rsl_rl", "cartpole-balance", "--num-envs", "16")
    (sample,) = data["samples"]
    for who in ("mjfleet", "rsl_rl"):
        found = sample[who]
        assert len(found["iterations"]) == 3
        seconds = [iteration["seconds"] for iteration in found["iterations"]]
        assert seconds == sorted(seconds)
        assert found["first_iteration_seconds"] == seconds[0] > 0
        elapsed = seconds[2] - seconds[0]
        assert found["steps_per_second"] == pytest.approx(2 * 16 * 32 / elapsed)
        assert found["peak_memory"] > 2**27
    worlds, ours, theirs, ratio = data["tables"][0]["rows"][0]
    assert worlds == "16"
    assert ratio["median"] == pytest.approx(ours["median"] / theirs["median"])
    worlds, ours, theirs, ratio = data["tables"][1]["rows"][0]
    assert ratio["median"] == pytest.approx(theirs["median"] / ours["median"])


@pytest.mark.parametrize(
    "what", ["throughput", "scaling", "startup", "peer mjlab", "peer rsl_rl",
             "learning"],
)  # fmt: skip
def test_help_is_light(run: Run, what: str) -> None:
    result = run("mjfleet", "bench", *what.split(), "--help", prelude=POISON)
    assert result.returncode == 0, result.stderr
    assert "--output" in result.stdout
    assert what in run("mjfleet", "bench", "--help", prelude=POISON).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["speed"], ["no benchmark `speed`", "throughput", "peer mjlab"]),
        (["peer"], ["no benchmark `peer`"]),
        (["throughput"], ["the task comes first"]),
        (["throughput", "cartpole"], ["no task `cartpole`", "cartpole-balance"]),
        (["throughput", "cartpole-balance", "--num-envs", "0"], ["--num-envs", "at least 1"]),
        (["throughput", "cartpole-balance", "--iterations", "1"], ["--iterations is 1"]),
        (["scaling", "cartpole-balance", "--repeats", "0"], ["--repeats is 0"]),
        (["scaling", "cartpole-balance", "--workers", "1000"], ["--workers is 1000"]),
        (["peer", "rsl_rl", "--gpu-ids", "0"], ["--gpu-ids 0"]),
        (["peer", "rsl_rl", "--cpu-threads", "1000"], ["--cpu-threads is 1000"]),
        (["startup", "cartpole-balance", "--output", "/dev/null/x"], ["--output /dev/null/x"]),
        (
            ["learning", "cartpole-balance", "--until", "x = 1"],
            ["--until", "task/velocity_error <"],
        ),
        (["learning", "cartpole-balance", "--until", "x<1"], ["mean_reward", "--peer none"]),
        (
            ["learning", "cartpole-balance", "--until", "mean_reward>1", "--iterations", "9"],
            ["--iterations is 9", "at least 10"],
        ),
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
