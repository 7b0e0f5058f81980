"""A run directory that an earlier version of mjfleet wrote still works with every command."""

import json
import shutil
from pathlib import Path

import pytest

from ..conftest import TESTS, Run, rows

EARLIER = TESTS / "data" / "cartpole-balance-9159368"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "logs" / "cartpole-balance" / "2026-11-23_00-39-12_before"
    return Path(shutil.copytree(EARLIER, folder))


def test_it_is_listed_played_exported_and_reported(run: Run, run_dir: Path, tmp_path: Path) -> None:
    listed = run("mjfleet", "runs", "--json")
    assert listed.returncode == 0, listed.stderr
    (found,) = json.loads(listed.stdout)
    assert (found["status"], found["iterations"], found["problem"]) == ("finished", 3, None)
    for command in (
        ("play", "cartpole-balance", "--resume", "latest", "--episodes", "1"),
        ("mjfleet", "export", "latest", "--format", "torchscript", "--output", "policy.pt"),
        ("mjfleet", "report", "latest", "--output", "report.html"),
    ):
        result = run(*command)
        assert result.returncode == 0, result.stderr
    assert (tmp_path / "policy.pt").stat().st_size > 1000
    assert "cartpole-balance" in (tmp_path / "report.html").read_text()


def test_it_resumes_in_its_own_directory(run: Run, run_dir: Path) -> None:
    result = run(
        *("train", "cartpole-balance", "--resume", str(run_dir), "--agent.max-iterations", "5")
    )
    assert result.returncode == 0, result.stderr
    assert "not kept: environments and random states, which begin anew" in result.stdout
    before, after = rows(EARLIER), rows(run_dir)
    assert after[:3] == before
    assert [row["iteration"] for row in after] == ["1", "2", "3", "4", "5"]
    assert list(after[0])[: len(before[0])] == list(before[0])
    record = json.loads((run_dir / "run.json").read_text())
    assert (record["status"], record["iterations"], len(record["attempts"])) == ("finished", 5, 2)
    assert (run_dir / "checkpoints" / "model_5.pt").is_file()


def test_without_its_checkpoints_it_begins_anew_and_keeps_its_metrics(
    run: Run, run_dir: Path
) -> None:
    shutil.rmtree(run_dir / "checkpoints")
    result = run("train", "cartpole-balance", "--resume", "latest", "--agent.max-iterations", "1")
    assert result.returncode == 0, result.stderr
    (replaced,) = (run_dir / "checkpoints").glob("replaced_*")
    assert (replaced / "metrics.csv").read_bytes() == (EARLIER / "metrics.csv").read_bytes()
    assert replaced.name in result.stdout
    assert [row["iteration"] for row in rows(run_dir)] == ["1"]
