"""`mjfleet runs --prune`: what goes, what stays, and that nothing is half removed."""

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mjfleet.cli.dispatcher import mjfleet
from mjfleet.errors import UserError
from mjfleet.utils.wait_until import wait_until

from ..conftest import PATIENCE
from ..runs.test_resume import add_checkpoint
from .test_list_runs import listed, write_run

WHEN = "2026-05-04T10:00:00+00:00"


def prune(root: Path, *words: str) -> int:
    return mjfleet(["runs", "--log-root", str(root), *words])


def write(folder: Path, days: float = 0, **entries: Any) -> Path:
    """A run that was trained some days ago and did 3 of 9 iterations."""
    write_run(folder, WHEN, **entries)
    when = time.time() - days * 86400
    for file in ("run.json", "metrics.csv"):
        os.utime(folder / file, (when, when))
    return folder


def names(root: Path) -> set[str]:
    return {path.name for path in (root / "a").iterdir()}


def test_what_is_named_goes_and_the_rest_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = {"max_iterations": 3, "world_size": 1, "workers": [{"device": "cpu"}]}
    write(tmp_path / "a/done", status="finished", plan=plan, days=40)
    write(tmp_path / "a/died", days=2)
    write(tmp_path / "a/failed", status="failed", days=50)
    write(tmp_path / "a/stopped_one", status="stopped", days=60)
    runs = {"done", "died", "failed", "stopped_one"}
    (tmp_path / "a/died/big").write_bytes(bytes(3_000_000))
    os.link(tmp_path / "a/died/big", tmp_path / "a/died/again")

    with pytest.raises(UserError, match=r"3\.0 MB would be removed.*--yes"):
        prune(tmp_path, "--prune", "unfinished")
    shown = capsys.readouterr().out
    assert "a/stopped_one: stopped, 3 iterations" in shown
    for wrong, words in (
        (("--prune", "old"), "older-than=30d"),
        (("--prune", "older-than=30"), "older-than=30d"),
        (("--prune",), "unfinished"),
        (("--yes",), "--prune"),
    ):
        with pytest.raises(UserError, match=words):
            prune(tmp_path, *wrong)
    assert names(tmp_path) == runs

    assert prune(tmp_path, "--prune", "unfinished", "older-than=55d", "--yes") == 0
    assert names(tmp_path) == runs - {"stopped_one"}
    assert prune(tmp_path, "failed", "--prune", "all", "--yes") == 0
    assert names(tmp_path) == {"done", "died"}
    assert prune(tmp_path, "--prune", "older-than=1w", "--yes") == 0
    assert names(tmp_path) == {"died"}


def test_what_is_locked_or_no_run_or_behind_a_link_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, elsewhere = tmp_path / "logs", write(tmp_path / "elsewhere/run", status="failed")
    for name in ("locked", "bare", "garbled", "links"):
        write(root / "a" / name, status="failed")
    (root / "a/links/out").symlink_to(elsewhere)
    (root / "a/linked").symlink_to(elsewhere)
    (root / "b").symlink_to(elsewhere.parent)
    (root / "a/bare/run.json").unlink()
    (root / "a/garbled/run.json").write_text("{")
    (root / "a/notes").mkdir()
    lock = os.open(root / "a/locked", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert prune(root, "--prune", "all", "--yes") == 0
    os.close(lock)
    assert names(root) == {"locked", "bare", "garbled", "linked", "notes"}
    assert len(list(elsewhere.iterdir())) == 4
    said = capsys.readouterr().err
    assert all(f"{name} stays" in said for name in ("a/locked", "a/garbled", "a/linked", "b/run"))


def test_a_group_goes_with_the_last_of_its_runs(tmp_path: Path) -> None:
    for group, statuses in {"one": ("failed", "finished"), "two": ("failed", "died")}.items():
        for seed, status in enumerate(statuses):
            write(tmp_path / f"a/{group}/seed_{seed}", status=status)
        (tmp_path / f"a/{group}/group.json").write_text(json.dumps({"task": "t", "members": {}}))
    lock = os.open(tmp_path / "a/two", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    for left in ({"one", "two"}, {"one"}):
        assert prune(tmp_path, "--prune", "unfinished", "--yes") == 0
        assert names(tmp_path) == left
        assert {path.name for path in (tmp_path / "a/one").iterdir()} == {"seed_1", "group.json"}
        fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)
    assert prune(tmp_path, "one", "--prune", "all", "--yes") == 0
    assert names(tmp_path) == set()


def test_only_checkpoints_that_others_make_unneeded_go(tmp_path: Path) -> None:
    run_dir = write(tmp_path / "a/1", status="finished")
    folder = run_dir / "checkpoints"
    for iteration in (1, 2, 3, 4):
        add_checkpoint(run_dir, iteration)
    good = (folder / "model_3.pt").read_bytes()
    for name in ("best", "init", "replaced_1/model_7"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.pt").write_bytes(good)
    (folder / "replaced_1/metrics.csv").touch()
    os.link(folder / "model_3.pt", folder / "final_model.pt")
    (folder / "model_4.pt").write_bytes(good[:-40])  # It is damaged, so the one before it is kept.
    only_bad = write(tmp_path / "a/2", status="finished")
    add_checkpoint(only_bad, 1).write_bytes(b"bad")
    assert prune(tmp_path, "--prune", "checkpoints", "--yes") == 0
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert left == {"model_3.pt", "final_model.pt", "best.pt", "replaced_1/metrics.csv"}
    assert (only_bad / "checkpoints/model_1.pt").exists()


def test_it_asks_and_after_a_kill_the_next_one_finishes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        sys.executable,
        "-P",
        "-m",
        "mjfleet.cli.dispatcher",
        "runs",
        "--log-root",
        str(tmp_path),
    ]
    run_dir, aside = write(tmp_path / "a/1", status="failed"), tmp_path / "a/.pruned_1"
    terminal, stdin = pty.openpty()
    for answer, is_trained, code in ((b"\n", False, 0), (b"y\n", True, 1), (b"y\n", False, 0)):
        assert names(tmp_path) == {"1"}
        with subprocess.Popen(
            [*command, "--prune", "all"], stdin=stdin, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout
            process.stdout.readline()
            if is_trained:  # It has begun and ended since it was listed.
                (run_dir / "metrics.csv").touch()
            os.write(terminal, answer)
            assert process.wait() == code
    assert names(tmp_path) == set()
    os.close(terminal)
    os.close(stdin)

    write(run_dir, status="failed")
    for number in range(5000):
        (run_dir / "checkpoints" / str(number)).touch()
    with subprocess.Popen([*command, "--prune", "all", "--yes"]) as process:
        assert wait_until(lambda: not run_dir.exists(), PATIENCE)  # It has been moved aside.
        process.send_signal(signal.SIGKILL)
    assert listed(capsys, "--log-root", str(tmp_path)) == {}
    aside.mkdir(exist_ok=True)  # In case that it was faster.
    assert prune(tmp_path, "nothing-else", "--prune", "all", "--yes") == 0
    assert names(tmp_path) == set()
