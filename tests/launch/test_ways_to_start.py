"""The shortest run of each way to start workers; what may happen to them is in the other files."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from ..conftest import Run, Start, changed, only_run, rows
from .network import Network
from .test_hosts import TWO, network, train
from .workers import PAIR, write_noisy

__all__ = ["network"]  # A fixture.

FEW = ("--agent.max-iterations", "2")
KILLED_ONCE = """if not os.path.exists("killed"):
                open("killed", "w").close()
                os.kill(os.getpid(), signal.SIGKILL)"""


def test_a_killed_worker_starts_again_from_the_last_checkpoint(run: Run, tmp_path: Path) -> None:
    write_noisy(tmp_path, step=KILLED_ONCE)
    flags = ("--agent.max-iterations", "3", "--agent.save-interval", "1")
    result = run("train", "noisy", "--max-restarts", "1", *flags)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("starting again in") == 1
    run_dir = only_run(tmp_path, "noisy")
    assert [row["iteration"] for row in rows(run_dir)] == ["1", "2", "3"]
    attempts = json.loads((run_dir / "run.json").read_text())["attempts"]
    assert [attempt["status"] for attempt in attempts] == ["failed", "finished"]
    assert [attempt["checkpoint"] for attempt in attempts] == [None, "model_1.pt"]
    assert "SIGKILL" in attempts[0]["cause"]


def test_a_parent_that_ignores_the_ends_of_children_does_no_harm(
    start: Start, tmp_path: Path
) -> None:
    short = changed(PAIR, "--agent.max-iterations", "1")
    process = start("train", "cartpole-balance", *short, ignores=signal.SIGCHLD)
    assert process.communicate()[1] == ""
    assert process.returncode == 0
    assert len(rows(only_run(tmp_path))) == 1

    script = """
from mjfleet.api.command_process import CommandProcess
print(CommandProcess(["tasks"], is_shown=True).wait())
"""
    command = ["env", "--ignore-signal=CHLD", sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "cartpole-balance" in done.stdout
    assert done.stdout.endswith("\n0\n")


def test_torchrun_starts_workers(tmp_path: Path) -> None:
    agent = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command = [*agent, "-m", "mjfleet.cli.train", "cartpole-balance", *changed(PAIR, *FEW)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("iteration=2/2 ") == 1
    run_dir = only_run(tmp_path)
    assert [row["world_size"] for row in rows(run_dir)] == ["2", "2"]
    workers = json.loads((run_dir / "run.json").read_text())["plan"]["workers"]
    assert [worker["seed"] for worker in workers] == [1, 2]


def test_two_hosts_are_one_run(network: Network, tmp_path: Path) -> None:
    with train(network, tmp_path, *changed(TWO, *FEW)) as process:
        _, errors = process.communicate()
    assert process.returncode == 0, errors
    run_dir = only_run(tmp_path)
    assert [row["world_size"] for row in rows(run_dir)] == ["2", "2"]
    (logs,) = (run_dir / "torchrunx").iterdir()
    assert "rank 1: building" in (logs / "node2[0].log").read_text()
