"""`mjfleet runs --prune`: what goes, and what stays."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from mjfleet.cli.dispatcher import mjfleet
from mjfleet.errors import UserError
from mjfleet.runs.run_lock import lock_run

from ..runs.test_resume import add_checkpoint
from .test_list_runs import write_run

WHEN = "2026-05-04T10:00:00+00:00"


def prune(root: Path, *arguments: str) -> int:
    return mjfleet(["runs", "--log-root", str(root), *arguments])


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
    stopped = write(tmp_path / "a/stopped_one", status="stopped", days=60)
    runs = {"done", "died", "failed", "stopped_one"}
    (stopped / "checkpoints/model_3.pt").write_bytes(bytes(3_000_000))
    os.link(stopped / "checkpoints/model_3.pt", stopped / "checkpoints/final_model.pt")

    assert prune(tmp_path, "stopped", "--prune", "unfinished") == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["a/stopped_one: all of it, 3.0 MB", "this is 3.0 MB in all; --yes removes it"]
    for wrong, problem in (
        (("--prune", "old"), "older-than=30d"),
        (("--prune", "older-than=30"), "older-than=30d"),
        (("--prune",), "unfinished"),
        (("--yes",), "--prune"),
    ):
        with pytest.raises(UserError, match=problem):
            prune(tmp_path, *wrong)
    assert names(tmp_path) == runs

    assert prune(tmp_path, "--prune", "unfinished", "older-than=55d", "--yes") == 0
    assert names(tmp_path) == runs - {"stopped_one"}
    assert prune(tmp_path, "failed", "--prune", "all", "--yes") == 0
    assert names(tmp_path) == {"done", "died"}
    assert prune(tmp_path, "--prune", "older-than=1w", "--yes") == 0
    assert names(tmp_path) == {"died"}


def test_what_no_run_of_this_user_has_written_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, elsewhere = tmp_path / "logs", write(tmp_path / "elsewhere/run", status="failed")
    for name in ("locked", "bare", "garbled", "own", "whole"):
        write(root / "a" / name, status="failed")
    (root / "a/own/notes.txt").touch()
    (root / "a/own/videos").symlink_to(elsewhere)
    (root / "a/linked").symlink_to(elsewhere)
    (root / "b").symlink_to(elsewhere.parent)
    (root / "a/bare/run.json").unlink()
    (root / "a/garbled/run.json").write_text("{")
    (root / "a/notes").mkdir()
    stay = {"locked", "bare", "garbled", "linked", "notes", "own"}
    if os.geteuid() == 0:
        os.chown(write(root / "a/foreign", status="failed"), 12345, -1)
        stay.add("foreign")
    lock = lock_run(root / "a/locked")
    assert prune(root, "--prune", "all", "--yes") == 0
    lock.close()
    assert names(root) == stay
    assert {path.name for path in (root / "a/own").iterdir()} == {"notes.txt", "videos"}
    assert len(list(elsewhere.iterdir())) == 4
    shown = capsys.readouterr()
    assert "a/own keeps notes.txt, videos" in shown.out
    kept = ("a/locked", "a/garbled", "a/bare", "a/linked", "b/run")
    assert all(f"{name} stays" in shown.err for name in kept)


def test_a_group_goes_with_the_last_of_its_runs(tmp_path: Path) -> None:
    for group, statuses in {"one": ("failed", "finished"), "two": ("failed", "died")}.items():
        for seed, status in enumerate(statuses):
            write(tmp_path / f"a/{group}/seed_{seed}", status=status)
            (tmp_path / f"a/{group}/seed_{seed}.log").touch()
        (tmp_path / f"a/{group}/group.json").write_text(json.dumps({"task": "t", "kind": "seeds"}))
    lock = lock_run(tmp_path / "a/two")
    for left in ({"one", "two"}, {"one"}):
        assert prune(tmp_path, "--prune", "unfinished", "--yes") == 0
        assert names(tmp_path) == left
        assert not (tmp_path / "a/one/seed_0").exists()
        assert (tmp_path / "a/one/seed_0.log").exists()
        lock.close()
    (tmp_path / "a/one/notes.log").touch()
    assert prune(tmp_path, "one", "--prune", "all", "--yes") == 0
    assert names(tmp_path) == {"one"}
    assert [path.name for path in (tmp_path / "a/one").iterdir()] == ["notes.log"]


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
    linked = write(tmp_path / "a/3", status="finished")
    (linked / "checkpoints").rename(tmp_path / "others")
    (linked / "checkpoints").symlink_to(tmp_path / "others")
    for iteration in (1, 2):
        add_checkpoint(linked, iteration)
    assert prune(tmp_path, "--prune", "checkpoints", "--yes") == 0
    assert len(list((tmp_path / "others").iterdir())) == 2
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert left == {"model_3.pt", "final_model.pt", "best.pt", "replaced_1/metrics.csv"}
    assert (only_bad / "checkpoints/model_1.pt").exists()
