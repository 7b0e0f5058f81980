"""`mjfleet runs`: what is listed of a run, and what may be wrong with its files."""

import json
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from mjfleet.runs.run_lock import lock_run

from ..conftest import Output, Refusal, run_here


def write_run(folder: Path, started: str, **entries: Any) -> Path:
    """A run as training leaves it, without what `runs` does not read."""
    (folder / "checkpoints").mkdir(parents=True)
    attempt = {"started": started, "ended": None, "status": "running"}
    plan = {"max_iterations": 9, "world_size": 1, "workers": [{"device": "cpu"}]}
    record = {"task": "t", "status": "running", "started": started, "iterations": 0, "plan": plan}
    text = json.dumps(record | {"attempts": [attempt]} | entries)
    (folder / "run.json").write_text(text)
    (folder / "config.yaml").write_text("agent: {seed: 5}\n")
    (folder / "metrics.csv").write_text("iteration,mean_return,loss\n1,,0\n2,3.5,0\n3,2.5,0\n")
    return folder


Listed = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture
def listed(printed: Output) -> Listed:
    """What `mjfleet runs --json` prints, by run."""
    return lambda *flags: {one["run"]: one for one in json.loads(printed("runs", "--json", *flags))}


def test_the_newest_comes_first_and_the_best_return_may_not_be_the_last(
    here: Path, listed: Listed
) -> None:
    # In one zone after the other, though its text comes before.
    write_run(here / "logs/a/2", "2026-05-04T10:30:00+02:00", status="finished")
    write_run(here / "logs/b/1", "2026-05-04T10:00:00+00:00", status="stopped")
    runs = listed()
    assert list(runs) == ["b/1", "a/2"]
    one = runs["b/1"]
    checkpoints = here / "logs/b/1/checkpoints"
    (checkpoints / "model_3.pt").write_bytes(bytes(5_000_000))
    os.link(checkpoints / "model_3.pt", checkpoints / "final_model.pt")  # As training does.
    assert listed()["b/1"]["bytes"] == one["bytes"] + 5_000_000
    assert (one["last_mean_return"], one["best_mean_return"], one["iterations"]) == (2.5, 3.5, 3)


def test_runs_are_selected_by_words_and_sorted(tmp_path: Path, listed: Listed) -> None:
    root, when = ("--log-root", str(tmp_path)), "2026-05-0{}T10:00:00+00:00"
    for day, name in enumerate(("a/1_wide", "b/2", "b/3_wide"), start=1):
        write_run(tmp_path / name, when.format(day), status="finished", seed=10 - day)
    header = "iteration,mean_return,loss,eval/return,x\n"
    (tmp_path / "b/2/metrics.csv").write_text(f"{header}1,9.5,0,3.0,0\n2,9.0,0,,0\n")
    assert list(listed(*root, "WIDE", "b/")) == ["b/3_wide"]
    by_name = listed(*root, "finished", "--sort", "name")
    assert list(by_name) == ["a/1_wide", "b/2", "b/3_wide"]
    found = listed(*root, "--sort", "best")
    assert list(found) == ["b/3_wide", "a/1_wide", "b/2"]  # Evaluated returns count, if any.
    assert [run["seed"] for run in found.values()] == [7, 9, 8]
    two = found["b/2"]
    assert (two["best_mean_return"], two["best_eval_return"]) == (9.5, 3.0)
    assert two["last_mean_return"] == 9.0
    assert listed(*root, "nothing") == {}
    # One that has no return yet comes last, though others have less than 0.
    (tmp_path / "b/2/metrics.csv").write_text("iteration,mean_return\n1,-9\n")
    (tmp_path / "b/3_wide/metrics.csv").write_text("iteration,mean_return\n1,\n")
    assert list(listed(*root, "--sort", "best")) == ["a/1_wide", "b/2", "b/3_wide"]


def test_a_table_of_runs_fits_80_columns(
    tmp_path: Path, printed: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = {"max_iterations": 12000, "world_size": 2, "workers": [{"device": "cuda:0"}] * 2}
    names = ("go1-velocity-rough/2026-05-04_12-00-00", "go1-velocity-rough/2026-05-05_12-00-00")
    for name in names:
        when = f"{name[-19:-9]}T12:00:00+00:00"
        write_run(tmp_path / name, when, status="finished", seed=1234, plan=plan)
    monkeypatch.setenv("COLUMNS", "80")
    lines = printed("runs", "--log-root", str(tmp_path)).splitlines()
    assert lines[0].split() == ["run", "status", "seed", "done", "return", "best"]
    assert [line.split() for line in lines[1:]] == [
        [name, "finished", "1234", "3/12000", "2.5", "3.5"] for name in reversed(names)
    ]
    assert max(map(len, lines)) <= 80
    monkeypatch.setenv("COLUMNS", "200")
    assert "2 cuda" in printed("runs", "--log-root", str(tmp_path))


def test_time_is_that_of_training_and_a_run_that_nobody_trains_has_died(
    tmp_path: Path, listed: Listed
) -> None:
    times, day = [("10:00:00", "10:00:30"), ("18:00:00", "18:00:15")], "2026-05-04T"
    attempts = [{"started": day + a, "ended": day + b, "status": "stopped"} for a, b in times]
    write_run(tmp_path / "a/1", f"{day}10:00:00", status="stopped", attempts=attempts)
    folder, flags = write_run(tmp_path / "a/2", f"{day}09:00:00"), ("--log-root", str(tmp_path))
    one, two = listed(*flags).values()
    assert (one["seconds"], two["status"]) == (45, "died")
    began = datetime.fromisoformat(two["started"]).timestamp()
    for file in ("run.json", "metrics.csv"):  # It was killed after 20 seconds.
        os.utime(folder / file, (began + 20, began + 20))
    assert listed(*flags)["a/2"]["seconds"] == 20
    lock = lock_run(folder)
    assert listed(*flags)["a/2"]["status"] == "running"
    lock.close()


def test_damaged_runs_are_listed_and_hide_no_others(
    tmp_path: Path, listed: Listed, capfd: pytest.CaptureFixture[str]
) -> None:
    when = "2026-05-04T10:00:00+00:00"
    names = ("good", "garbled", "bare", "old", "bits", "odd", "pipe", "empty")
    made = {name: write_run(tmp_path / "a" / name, when, status="finished") for name in names}
    (made["garbled"] / "run.json").write_text("{")
    (made["bare"] / "run.json").unlink()
    (made["old"] / "run.json").write_text('{"task": "t", "started": "a while ago"}')
    (made["odd"] / "run.json").write_text('{"task": [], "started": 5, "plan": 3, "attempts": []}')
    (made["bits"] / "metrics.csv").write_bytes(b"iteration,mean_return,loss\n1,2,0\n2,\xff,0\n3,4")
    (made["pipe"] / "metrics.csv").unlink()
    os.mkfifo(made["pipe"] / "metrics.csv")
    (made["empty"] / "metrics.csv").write_bytes(b"")
    runs = listed("--log-root", str(tmp_path))
    assert set(runs) == {f"a/{name}" for name in names}
    for name, problem in (
        ("garbled", "run.json: "),
        ("bare", "run.json"),
        ("old", "run.json is incomplete"),
        ("odd", "run.json: its task is"),
        ("pipe", "metrics.csv: it is not a regular file"),
    ):
        assert problem in runs[f"a/{name}"]["problem"]
    assert runs["a/bits"]["last_mean_return"] == 2  # What is still being written does not count.
    assert runs["a/good"]["problem"] is runs["a/empty"]["problem"] is None
    assert run_here("runs", "--log-root", str(tmp_path)) == 0
    shown = capfd.readouterr()
    assert all(f"a/{name}" in shown.out for name in names)
    assert "a/garbled/run.json: " in shown.err


def test_mistakes_are_answered(refusal: Refusal) -> None:
    assert "--log-root logs: there is no such folder" in refusal("runs")
    assert "latest: there is no run of this user in logs" in refusal("plot", "latest")


def test_where_there_is_no_run_nothing_is_listed(tmp_path: Path, printed: Output) -> None:
    root = ("--log-root", str(tmp_path))
    assert printed("runs", *root) == f"there is no such run in {tmp_path}\n"
    assert printed("runs", *root, "--json") == "[]\n"
    assert not list(tmp_path.iterdir())
