"""How a run ends in run.json, also where that file or its folder is not what it was."""

import errno
import fcntl
import logging
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from mjfleet.config import TrainConfig
from mjfleet.errors import Stopped, UserError
from mjfleet.launch.devices import Devices
from mjfleet.launch.launch_plan import make_plan
from mjfleet.registry import discover
from mjfleet.runs import run_directory, run_lock
from mjfleet.runs.named_run import Parent
from mjfleet.runs.own_runs import note_of, remove_note
from mjfleet.runs.run_directory import (
    LauncherLog,
    RunDirectory,
    finish_complete,
    refuse_written,
)
from mjfleet.runs.run_json import read_record, write_record
from mjfleet.runs.run_lock import RunLock, is_locked, lock_run
from mjfleet.runs.start import Chosen, Start

from .test_damaged_runs import everything

TASK = discover({}).find("cartpole-balance")
PLAN = make_plan(TASK, TASK.defaults(), [Devices(cores=1)])


def begin(path: Path, config: TrainConfig | None = None) -> RunDirectory:
    chosen = Chosen(found=TASK, config=config or TASK.defaults(), argv=["train"])
    return RunDirectory(path, chosen, PLAN.record())


def resume(path: Path, config: TrainConfig, lock: RunLock | None = None) -> RunDirectory:
    start = Start(run_dir=path)
    chosen = Chosen(found=TASK, config=config, start=start, argv=["train"], lock=lock)
    return RunDirectory(path, chosen, PLAN.record())


def test_an_attempt_says_how_it_ended(tmp_path: Path) -> None:
    run = begin(tmp_path / "logs/run")
    run.end("failed", cause="no luck")
    run.close()
    record = read_record(tmp_path / "logs/run")
    assert record["status"] == record["attempts"][-1]["status"] == "failed"
    assert record["attempts"][-1]["cause"] == "no luck"


@pytest.mark.parametrize(
    "spoil",
    [
        shutil.rmtree,
        lambda path: (path / "run.json").unlink(),
        lambda path: (path / "run.json").write_text("{"),
        lambda path: (path / "run.json").write_text('{"attempts": []}'),
    ],
    ids=["removed", "no file", "no JSON", "no attempts"],
)
def test_where_that_cannot_be_recorded_it_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], object]
) -> None:
    path = tmp_path / "logs/run"
    run = begin(path)
    spoil(path)
    run.end("finished")
    run.close()
    (record,) = caplog.records
    assert str(path / "run.json") in record.getMessage()
    assert record.getMessage().endswith("it is gone") != (path / "run.json").exists()


@pytest.mark.parametrize(
    "error", [OSError(28, "no space left"), MemoryError(), Stopped(15)], ids=repr
)
def test_a_run_that_cannot_begin_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(run_directory, "write_config", fail)
    with pytest.raises(UserError if isinstance(error, OSError) else type(error)):
        begin(tmp_path / "logs/run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("moment", ["write_config", "write_attempts"])
def test_a_group_that_was_killed_as_it_began_begins_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    chosen = Chosen(found=TASK, config=replace(TASK.defaults(), run_dir=str(tmp_path)))
    with monkeypatch.context() as patched:
        patched.setattr(run_directory, moment, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        if not (child := os.fork()):
            RunDirectory(tmp_path, chosen, {"kind": "seeds"})
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    refuse_written(tmp_path)
    RunDirectory(tmp_path, chosen, {"kind": "seeds"}).close()
    assert len(read_record(tmp_path)["attempts"]) == 1
    assert (tmp_path / "config.yaml").exists()


def test_a_group_that_cannot_continue_keeps_the_attempts_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, entries = tmp_path / "group", {"kind": "seeds"}
    chosen = Chosen(found=TASK, config=TASK.defaults())
    RunDirectory(path, chosen, entries).close()
    before = read_record(path)

    def fail(*_: object) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(run_directory, "complete", fail)
    with pytest.raises(UserError, match="no space left"):
        RunDirectory(path, replace(chosen, start=Start(run_dir=path)), entries)
    assert read_record(path) == before


@pytest.mark.parametrize("full_at", ["write_json", "write_attempts", "keep"])
def test_a_run_that_a_full_disk_does_not_let_continue_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_at: str
) -> None:
    begin(tmp_path / "run").close()
    before = everything(tmp_path)

    def fail(*_: object) -> None:
        raise OSError(28, "no space left")

    lock = lock_run(tmp_path / "run")
    monkeypatch.setattr(run_directory, full_at, fail)
    if full_at != "keep":  # Nothing is freed by what is removed.
        monkeypatch.setattr(run_directory, "write_attempts", fail)
    with pytest.raises(UserError, match="run: no space left"):
        resume(tmp_path / "run", TASK.defaults(), lock)
    now = everything(tmp_path)
    assert {**now, "run/run.json": None} == {**before, "run/run.json": None}


def test_a_warning_that_a_full_disk_does_not_hold_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = partial(LauncherLog, "/dev/full")
    monkeypatch.setattr(run_directory, "LauncherLog", lambda _, **options: log(**options))
    run = begin(tmp_path / "run")
    logging.getLogger().warning("something")
    run.close()


def test_a_fork_copies_no_file_to_which_a_link_leads(tmp_path: Path) -> None:
    checkpoints, secret = tmp_path / "theirs/checkpoints", tmp_path / "secret"
    checkpoints.mkdir(parents=True)
    secret.write_text("secret")
    (checkpoints / "model_4.pt").touch()
    (checkpoints / "rank0_4.pt").symlink_to(secret)
    parent = Parent(checkpoint=str(checkpoints / "model_4.pt"), iteration=4)
    start = Start(kind="fork", checkpoint=checkpoints / "model_4.pt", parent=parent)
    chosen = Chosen(found=TASK, config=TASK.defaults(), start=start)
    with pytest.raises(UserError, match="not a regular file"):
        RunDirectory(tmp_path / "run", chosen, PLAN.record())
    assert not (tmp_path / "run").exists()


def test_what_a_killed_process_has_left_is_removed_and_other_files_stay(tmp_path: Path) -> None:
    path = tmp_path / "run"
    begin(path).close()
    for name in ("", "files", "checkpoints", "attempts/1", "mine"):
        (path / name).mkdir(exist_ok=True)
        (path / name / ".x.123.tmp").touch()
    resume(path, TASK.defaults()).close()
    assert [*path.rglob(".x.123.tmp")] == [path / "mine/.x.123.tmp"]


def test_what_is_in_the_way_of_an_attempt_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run"
    begin(path).close()
    (path / "config.yaml").unlink()
    (path / "config.yaml").mkdir()
    with pytest.raises(UserError, match=r"run/config\.yaml: Is a directory"):
        resume(path, TASK.defaults())
    (path / "config.yaml").rmdir()
    (path / "attempts/2").touch()
    with pytest.raises(UserError, match=r"run/attempts/2: File exists"):
        resume(path, TASK.defaults())


def test_a_finished_run_that_keeps_its_final_checkpoint_alone_is_done(tmp_path: Path) -> None:
    path = tmp_path / "run"
    begin(path).close()
    (path / "checkpoints/final_model.pt").touch()
    config = (path / "config.yaml").read_text()
    for _ in range(2):
        (path / "config.yaml").unlink()
        (path / ".run.json.123.tmp").touch()
        finish_complete(path)
        assert read_record(path)["status"] == "finished"
        assert (path / "config.yaml").read_text() == config
        assert not [*path.glob(".*.tmp")]
    assert [file.name for file in (path / "checkpoints").iterdir()] == ["final_model.pt"]


def test_run_dir_may_be_a_folder_with_other_files_which_stay(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / "notes.txt").write_text("mine")
    run = begin(path, replace(TASK.defaults(), run_dir=str(path)))
    assert {p.name for p in path.iterdir()} > {"notes.txt", "run.json", "config.yaml"}
    run.leave()
    assert [p.name for p in path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("record", ["run.json", "group.json"])
def test_a_run_does_not_begin_where_a_run_or_a_group_has_begun_meanwhile(
    tmp_path: Path, record: str
) -> None:
    (tmp_path / record).write_text("{}")
    with pytest.raises(UserError, match=r"has begun in .* meanwhile"):
        begin(tmp_path, replace(TASK.defaults(), run_dir=str(tmp_path)))
    assert (tmp_path / record).read_text() == "{}"


def test_an_id_on_wandb_is_used_only_by_the_installation_that_had_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    defaults = TASK.defaults()
    config = replace(defaults, agent=replace(defaults.agent, logger=("wandb",)))
    path = tmp_path / "run"
    begin(path, config).close()
    run_id = read_record(path)["id"]
    resume(path, config, lock_run(path)).close()
    assert read_record(path)["id"] == run_id
    assert not capsys.readouterr().err
    write_record(path, id="theirs")
    resume(path, config, lock_run(path)).close()
    assert read_record(path)["id"] not in ("theirs", run_id)
    assert "W&B: a new run in" in capsys.readouterr().err


def test_a_copy_of_a_run_becomes_a_run_of_its_own_and_one_that_was_moved_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    defaults = TASK.defaults()
    config = replace(defaults, agent=replace(defaults.agent, logger=("wandb",)))
    path, copy = tmp_path / "run", tmp_path / "copy"
    begin(path, config).close()
    run_id = read_record(path)["id"]
    shutil.copytree(path, copy)
    for _ in range(2):
        resume(copy, config, lock_run(copy)).close()
        resume(path, config, lock_run(path)).close()
    own = read_record(copy)["id"]
    assert read_record(path)["id"] == run_id != own
    assert capsys.readouterr().err.splitlines() == [
        f"W&B: a new run in {copy}: it is a copy of {path}"
    ]
    remove_note(copy)
    assert note_of(copy) is None
    assert note_of(path)
    path = path.rename(tmp_path / "moved")
    resume(path, config, lock_run(path)).close()
    assert read_record(path)["id"] == run_id


def test_one_process_at_a_time_trains_in_a_run_directory(tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    assert is_locked(tmp_path / "run")
    with pytest.raises(UserError, match=f"is being trained by process {os.getpid()}"):
        lock_run(tmp_path / "run", patience=0)
    run.close()
    assert not is_locked(tmp_path / "run")
    lock_run(tmp_path / "run", patience=0).close()
    lock = lock_run(tmp_path)
    for _ in ("a run that has not written its record yet", "one whose record is damaged"):
        with pytest.raises(UserError, match="is being trained by another process"):
            lock_run(tmp_path, patience=0)
        (tmp_path / "run.json").write_text("{")
    lock.close()


def test_without_locks_a_process_that_touches_the_file_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    run, path = begin(tmp_path / "run"), tmp_path / "run"
    assert is_locked(path)
    with pytest.raises(UserError, match="is being trained"):
        lock_run(path, patience=0)
    # Another host's process has been silent.
    write_record(path, host="another")
    assert is_locked(path)
    silent = time.time() - run_lock.SILENT_SECONDS - 1
    os.utime(path / ".lock", (silent, silent))
    assert not is_locked(path)
    lock_run(path, patience=0).close()
    # This host's process has ended.
    with subprocess.Popen(["true"]) as ended:
        pass
    write_record(path, host=os.uname().nodename, pid=ended.pid)
    assert not is_locked(path)
    run.end("finished")
    run.close()
    os.utime(path / ".lock")
    assert not is_locked(path)


def test_a_continuation_that_is_discarded_leaves_no_lock_of_its_own(tmp_path: Path) -> None:
    begin(tmp_path / "run").close()
    (tmp_path / "run/.lock").unlink()
    before = sorted(tmp_path.rglob("*"))
    resume(tmp_path / "run", TASK.defaults()).leave()
    assert sorted(tmp_path.rglob("*")) == before
