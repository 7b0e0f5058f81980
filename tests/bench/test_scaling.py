"""`mjfleet bench scaling`, with workers, and ended by Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ..conftest import PATIENCE, Run
from .tiny import measured


@pytest.mark.slow
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


@pytest.mark.slow
def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    scratch = tmp_path / "temporary"
    scratch.mkdir()
    script = "from mjfleet.cli.dispatcher import main; main()"
    command = ["bench", "scaling", "cartpole-balance", "--iterations", "100000", "--workers", "1"]
    with subprocess.Popen(
        [sys.executable, "-c", script, *command, "--gpu-ids", "None"],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(scratch)},
        stderr=subprocess.DEVNULL,
    ) as process:
        deadline = time.monotonic() + PATIENCE
        while not list(scratch.glob("*/run/metrics.csv")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    assert children
    assert not [child for child in children if child.is_running()]
    assert not list(scratch.iterdir())
    assert list(tmp_path.iterdir()) == [scratch]
