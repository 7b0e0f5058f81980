"""A run directory that cannot be written: it can be looked at, but not resumed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import MODULES
from .test_damaged_runs import TASK, everything, make_run

DROP = ("setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner")
"""What lets root write anywhere is given up."""


def run_as_anybody(cwd: Path, module: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [*(DROP if os.geteuid() == 0 else ()), sys.executable, "-m", MODULES[module]]
    return subprocess.run(
        [*command, *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() == 0 and not shutil.which("setpriv"), reason="root can write anywhere"
)
def test_a_run_that_cannot_be_written_can_be_looked_at(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "theirs")
    name, own = str(run_dir), tmp_path / "own"
    own.mkdir()
    for path in (run_dir, *run_dir.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = everything(run_dir)
    try:
        for words in (
            ("mjfleet", "runs", "--log-root", str(run_dir.parents[1])),
            ("mjfleet", "plot", name, "--output", "curves.svg", "--columns", "loss/value"),
            ("mjfleet", "report", name, "--output", "page.html"),
            ("mjfleet", "export", name, "--format", "torchscript", "--output", "policy.pt"),
            ("train", TASK, "--resume", name, "--fork", "--agent.max-iterations", "4"),
        ):
            result = run_as_anybody(own, *words)
            assert result.returncode == 0, result.stderr
        assert list((own / "logs" / TASK).glob("*/checkpoints/model_4.pt"))
        for words in (
            ("mjfleet", "plot", name, "--columns", "loss/value"),
            ("mjfleet", "report", name),
            ("train", TASK, "--resume", name, "--agent.max-iterations", "4"),
        ):
            result = run_as_anybody(own, *words)
            assert result.returncode == 2
            assert result.stderr.count("\n") == 1
            assert "Permission denied" in result.stderr
        assert everything(run_dir) == before
    finally:
        for path in (run_dir, *run_dir.rglob("*")):
            path.chmod(0o755)
