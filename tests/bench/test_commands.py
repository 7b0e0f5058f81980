"""`mjfleet bench` on the command line: help, mistakes, Ctrl-C, and real measurements, tiny ones."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from ..cli.test_cli import POISON
from ..conftest import Run

TINY = ("--gpu-ids", "None", "--warmup", "1", "--iterations", "2", "--repeats", "1")


def measured(run: Run, tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """What a benchmark writes; it leaves nothing besides."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    result = run("main", "bench", *arguments, *TINY, TMPDIR=str(temporary))
    assert result.returncode == 0, result.stderr
    assert not list(temporary.glob("mjfleet*"))
    (path,) = (tmp_path / "benchmarks").glob("*.json")
    text = path.with_suffix(".md").read_text()
    assert text in result.stdout
    data = json.loads(path.read_text())
    assert data["command"].startswith(f"mjfleet bench {' '.join(arguments[:2])}")
    for private in (socket.gethostname(), str(tmp_path), os.path.expanduser("~/")):
        assert private not in path.read_text() + text
    return data


def test_throughput_says_where_the_time_goes(run: Run, tmp_path: Path) -> None:
    data = measured(run, tmp_path, "throughput", "cartpole-balance", "--num-envs", "16")
    (sample,) = data["samples"]
    assert sample["num_envs"] == 16
    limit = sample["limits"]["Batch.step"]
    assert limit["steps_per_second"] > sample["collecting_steps_per_second"]
    assert 0 < limit["ratio"] < 1
    assert sample["collecting_steps_per_second"] > sample["steps_per_second"] > 0
    assert sum(sample["shares"].values()) == pytest.approx(1)
    assert all(share > 0 for share in sample["shares"].values())
    speeds, times, shares = data["tables"]
    assert speeds["columns"][-1] == "collecting / Batch.step"
    assert speeds["rows"][0][0] == "16"
    assert times["columns"] == shares["columns"]
    page = run("main", "bench", "report", prelude=POISON)
    assert page.returncode == 0
    assert "Throughput of cartpole-balance" in page.stdout
    assert f"- CPU: {data['machine']['CPU']}" in page.stdout


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


def test_two_workers_are_compared_with_one(run: Run, tmp_path: Path) -> None:
    data = measured(
        run, tmp_path, "scaling", "cartpole-balance", "--num-envs", "16", "--workers", "2"
    )
    one, two = data["samples"]
    assert (one["workers"], two["workers"]) == (1, 2)
    efficiency = two["steps_per_second"] / one["steps_per_second"] / 2
    _, row = data["tables"][0]["rows"]
    assert row[2]["median"] == pytest.approx(efficiency)
    assert row[4]["median"] > 0
    (plot,) = data["plots"]
    assert (tmp_path / "benchmarks" / plot).read_bytes().startswith(b"\x89PNG")


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    scratch = tmp_path / "temporary"
    scratch.mkdir()
    script = "from mjfleet.cli.main import main; main()"
    command = ["bench", "scaling", "cartpole-balance", "--iterations", "100000", "--workers", "1"]
    with subprocess.Popen(
        [sys.executable, "-c", script, *command, "--gpu-ids", "None"],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(scratch)},
        stderr=subprocess.DEVNULL,
    ) as process:
        deadline = time.monotonic() + 120
        while not list(scratch.glob("*/logs/*/*/metrics.csv")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert children
    assert not [child for child in children if child.is_running()]
    assert not list(scratch.glob("mjfleet*"))
    assert list(tmp_path.iterdir()) == [scratch]


@pytest.mark.parametrize(
    "what", ["throughput", "scaling", "startup", "peer mjlab", "peer rsl_rl", "learning", "report"]
)
def test_help_is_light(run: Run, what: str) -> None:
    result = run("main", "bench", *what.split(), "--help", prelude=POISON)
    assert result.returncode == 0, result.stderr
    assert "--output" in result.stdout
    assert what in run("main", "bench", "--help", prelude=POISON).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["speed"], ["no benchmark `speed`", "throughput", "peer mjlab", "report"]),
        (["peer"], ["no benchmark `peer`"]),
        (["throughput"], ["the task comes first"]),
        (["throughput", "cartpole"], ["no task `cartpole`", "cartpole-balance"]),
        (["throughput", "cartpole-balance", "--num-envs", "0"], ["--num-envs", "positive"]),
        (["throughput", "cartpole-balance", "--iterations", "1"], ["--iterations is 1"]),
        (["scaling", "cartpole-balance", "--repeats", "0"], ["--repeats is 0"]),
        (["scaling", "cartpole-balance", "--workers", "1000"], ["--workers is 1000"]),
        (["peer", "rsl_rl", "--gpu-ids", "0"], ["--gpu-ids 0"]),
        (["peer", "rsl_rl", "--cpu-threads", "1000"], ["--cpu-threads is 1000"]),
        (["startup", "cartpole-balance", "--output", "/dev/null/x"], ["--output /dev/null/x"]),
        (["report", "nothing"], ["nothing holds no results"]),
    ],
)
def test_a_mistake_is_one_message(
    run: Run, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    result = run("main", "bench", *arguments, prelude=POISON, CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 2, result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert all(word in result.stderr for word in words), result.stderr
    assert not result.stdout
    assert not list(tmp_path.iterdir())
