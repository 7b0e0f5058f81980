"""`--run-dir D` begins a run in D, or continues the one that is there, by the same command."""

import ctypes
import itertools
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mjfleet.cli.train import configure
from mjfleet.errors import UserError
from mjfleet.runs.find_run import is_of_this_user
from mjfleet.runs.run_json import read_record, write_record
from mjfleet.runs.run_lock import REQUEUE_SECONDS, lock_run

from ..conftest import Run, changed, copy_task, rows
from ..launch.workers import write_noisy
from .test_damaged_runs import everything
from .test_resume import SIX, TASK, add_checkpoint, make_run

DRY = "--dry-run"


def test_the_same_command_begins_continues_and_is_done(run: Run, tmp_path: Path) -> None:
    command = ("train", TASK, *SIX, "--agent.save-interval", "2", "--run-dir", "d")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/notes.txt").write_text("mine")
    assert run(*command).returncode == 0
    # As if killed after the last iteration.
    write_record(tmp_path / "d", status="running", ended=None)
    done = run(*command)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1)
    assert "nothing is left to do" in done.stdout
    record = read_record(tmp_path / "d")
    assert (record["status"], record["attempts"][0]["status"]) == ("finished", "finished")
    more = run(*changed(command, "--agent.max-iterations", "8"))
    assert more.returncode == 0, more.stderr
    assert [row["iteration"] for row in rows(tmp_path / "d")] == [*map(str, range(1, 9))]
    # The longer length is recorded, and needs not be typed again.
    again = run("train", TASK, "--run-dir", "d")
    assert "has all 8 iterations; --agent.max-iterations 8 is the total" in again.stdout
    fewer = run("train", TASK, "--run-dir", "d", "--max-iterations", "2")
    assert (fewer.returncode, fewer.stdout.count("\n")) == (0, 1)
    line = "has 8 iterations; --agent.max-iterations 2 is the total, not how many more: raise it"
    assert line in fewer.stdout
    fewer = run("train", TASK, "--run-dir", "d", "--total-steps", "5")
    assert "has all 8 iterations; --total-steps 5 is the total, not how many more" in fewer.stdout
    before = (tmp_path / "d/run.json").read_bytes()
    refused = run(*command, "--seed", "2", "--agent.algorithm.gamma", "0.5")
    assert refused.returncode == 2
    assert "--agent.seed is 2, was 1; --agent.algorithm.gamma is 0.5, was 0.95" in refused.stderr
    assert "--resume d --fork" in refused.stderr

    # The command of the message works, and again.
    fork = ("train", TASK, "--resume", "d", "--fork", "--run-dir", "e", "--seed", "2")
    assert run(*fork, "--agent.max-iterations", "9").returncode == 0
    assert "nothing is left" in run(*fork).stdout
    assert [row["iteration"] for row in rows(tmp_path / "e")] == ["9"]
    assert (tmp_path / "d/run.json").read_bytes() == before
    # The copy of the checkpoint is gone with the directory: the message names the original.
    wrong = ("--agent.max-iterations", "9", "--agent.actor.hidden-dims", "3")
    misfit = run("train", TASK, "--resume", "d", "--fork", *wrong)
    assert "error: checkpoint d/checkpoints/model_8.pt is of" in misfit.stderr
    other = run("train", TASK, "--resume", "e", "--fork", "--run-dir", "e", "--seed", "2")
    assert other.returncode == 2
    assert "has begun from" in other.stderr


def config_of(*flags: str) -> Any:
    chosen = configure([TASK, *flags, DRY])
    return chosen.found, chosen.config, chosen.start


def test_an_edited_default_changes_no_run_that_continues(tmp_path: Path) -> None:
    add_checkpoint(make_run(tmp_path, "d"), 4)  # Its configuration has seed 5.
    place = ("--run-dir", str(tmp_path / "d"))
    _, config, resume = config_of(*place)
    assert (config.agent.seed, resume and resume.iteration) == (5, 4)
    # It may say the same.
    assert config_of(*place, "--seed", "5", "--agent.max-iterations", "9")[1].agent.seed == 5


def test_a_run_that_has_learned_nothing_begins_anew_with_what_is_typed(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, "d")
    write_record(run_dir, task="cartpole-swingup")
    found, config, resume = config_of("--run-dir", str(run_dir), "--agent.algorithm.gamma", "0.5")
    assert resume
    assert (resume.run_dir, resume.checkpoint, resume.iteration) == (run_dir, None, 0)
    assert (found.name, config.agent.seed, config.agent.algorithm.gamma) == (TASK, 1, 0.5)
    with pytest.raises(UserError, match="has no checkpoint and begins anew"):
        configure(["--run-dir", str(run_dir), DRY])


def test_a_file_of_another_task_than_the_runs_is_refused(tmp_path: Path) -> None:
    add_checkpoint(make_run(tmp_path, "d"), 4)
    file = tmp_path / "other.yaml"
    typed = ["--run-dir", str(tmp_path / "d"), "--config", str(file), DRY]
    for task in ("cartpole-swingup", "no-such"):
        file.write_text(f"task: {task}")
        with pytest.raises(UserError, match=f"not of {task}: name {TASK} as the task"):
            configure(typed)
    for text in (f"task: {TASK}", "agent: {max_iterations: 9}"):
        file.write_text(text)
        assert configure(typed).found.name == TASK


def test_what_words_meant_at_first_is_not_looked_up_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = add_checkpoint(make_run(Path("logs/a"), "one", "2026-01-02T00:00:00+00:00"), 3)
    fork = ("--resume", "latest", "--fork", "--run-dir", "d")
    _, _, begun = config_of(*fork)
    assert begun
    assert begun.parent
    assert begun.checkpoint == first
    # It was killed as soon as it had recorded that, and another run has begun meanwhile.
    run_dir = make_run(tmp_path, "d")
    write_record(run_dir, parent={"named": "latest", "checkpoint": str(first.resolve())})
    add_checkpoint(make_run(Path("logs/a"), "two", "2026-01-03T00:00:00+00:00"), 9)
    _, _, again = config_of(*fork)
    assert again
    assert again.parent
    assert (again.run_dir, again.parent.checkpoint) == (Path("d"), str(first.resolve()))
    assert again.parent.typed == "latest"
    add_checkpoint(run_dir, 4)
    _, _, learned = config_of(*fork)
    assert learned
    assert (learned.run_dir, learned.iteration) == (Path("d"), 4)


@pytest.mark.parametrize("name", ["config.yaml", "checkpoints", "task", "metrics.csv"])
def test_a_folder_that_holds_what_a_run_writes_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / name).touch()
    with pytest.raises(UserError, match=rf"has no run\.json.* {name}, which a run would write"):
        config_of("--run-dir", str(tmp_path / "d"))
    lock = lock_run(tmp_path / "d")  # As a run that has not written its run.json yet.
    with pytest.raises(UserError, match="meanwhile: start the command again"):
        config_of("--run-dir", str(tmp_path / "d"))
    lock.close()


def test_a_command_that_is_killed_while_it_begins_a_run_begins_it_again(
    run: Run, tmp_path: Path
) -> None:
    assert run("train", TASK, *SIX, "--run-dir", "parent").returncode == 0
    values = ("--agent.algorithm.gamma", "0.5", "--agent.max-iterations", "7")
    fork = ("train", TASK, "--resume", "parent", "--fork", *values, "--max-restarts", "1")
    for name in ("git_state", "write_attempts", "keep", "write_pointer", "complete", "add_note"):
        late = (
            "import mjfleet.runs.run_directory as module, os\n"
            f"module.{name} = lambda *_, os=os: os.kill(os.getpid(), 9)"
        )
        assert run(*fork, "--run-dir", name, late=late).returncode == -9
        again = run(*fork, "--run-dir", name)
        assert again.returncode == 0, (name, again.stderr)
        config = (tmp_path / name / "config.yaml").read_text()
        assert "gamma: 0.5" in config
        attempts = read_record(tmp_path / name)["attempts"]
        numbers = [str(number) for number in range(1, len(attempts) + 1)]
        folders = {path.name for path in (tmp_path / name / "attempts").iterdir()}
        assert folders == {*numbers, "current"}
        assert [row["iteration"] for row in rows(tmp_path / name)] == ["7"]


def test_a_fork_that_has_nothing_left_to_do_finishes_no_run(run: Run, tmp_path: Path) -> None:
    assert run("train", TASK, *SIX, "--run-dir", "d").returncode == 0
    fork = ("train", TASK, "--resume", "d", "--fork", "--run-dir", "e", "--agent.max-iterations")
    assert run(*fork, "7").returncode == 0
    shutil.rmtree(tmp_path / "e/checkpoints")  # As if it was killed before it had the copy.
    (attempt,) = read_record(tmp_path / "e")["attempts"]
    write_record(tmp_path / "e", status="failed", attempts=[attempt | {"status": "failed"}])
    before = everything(tmp_path / "e")
    done = run(*fork, "2")
    assert (done.returncode, "nothing is left to do" in done.stdout) == (0, True)
    assert everything(tmp_path / "e") == before


@pytest.mark.parametrize("name", ["x", "checkpoints/x", "a/b/../../x"])
def test_no_run_begins_inside_another_one(tmp_path: Path, name: str) -> None:
    outer = make_run(tmp_path, "outer")
    (outer / "config.yaml").touch()
    with pytest.raises(UserError, match=f"is inside the run {outer}: name another folder"):
        config_of("--run-dir", str(outer / name))


@pytest.mark.parametrize("name", ["outer", "outer/logs", "."])
def test_no_folder_of_runs_is_inside_a_run(tmp_path: Path, name: str) -> None:
    add_checkpoint(outer := make_run(tmp_path, "outer"), 4)
    flags = ("--log-root", str(tmp_path / name))
    experiment = ("--agent.experiment-name", "outer")
    for further in ((), ("--seeds", "2"), ("--resume", str(outer), "--fork")):
        with pytest.raises(UserError, match=rf"--log-root \S+: .*inside the run {outer}: name ano"):
            config_of(*flags, *further, *experiment)
    *_, start = config_of(*flags, "--resume", str(outer))
    assert start
    assert start.run_dir == outer


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can give a folder away")
def test_the_run_of_another_user_is_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    add_checkpoint(run_dir := make_run(Path("logs", TASK)), 4)
    os.chown(run_dir, 12345, -1)
    for flags in (("--run-dir", str(run_dir)), ("--resume", str(run_dir))):
        with pytest.raises(UserError, match=r"another user's.*--fork"):
            config_of(*flags)
    with pytest.raises(UserError, match="there is no run"):
        config_of("--resume", "latest")
    _, _, resume = config_of("--resume", str(run_dir), "--fork")
    assert resume
    assert (resume.run_dir, resume.iteration) == (None, 4)
    # NFS with root_squash takes root for somebody else, as this thread is for a moment.
    monkeypatch.chdir(run_dir)
    libc = ctypes.CDLL(None)
    libc.setfsuid(12345)
    try:
        assert is_of_this_user(Path())
    finally:
        libc.setfsuid(0)
    assert not is_of_this_user(Path())


@pytest.mark.parametrize("is_new", [True, False])
def test_a_command_waits_for_its_predecessor_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_new: bool
) -> None:
    add_checkpoint(run_dir := make_run(tmp_path, "d"), 4)
    write_record(run_dir, host="node7", pid=7)
    lock = lock_run(run_dir)
    clock = itertools.count(0, 25).__next__
    with pytest.raises(UserError, match="is being trained by process 7 on node7"):
        lock_run(run_dir, REQUEUE_SECONDS, clock)
    assert "waiting up to 60 s for process 7 on node7" in capsys.readouterr().out
    assert clock() == 100  # It has asked at 25, 50 and 75 seconds.

    def until_it_ends() -> Iterator[float]:
        yield 0.0
        lock.close()
        yield 59.0

    lock_run(run_dir, REQUEUE_SECONDS, until_it_ends().__next__).close()
    if is_new:
        (run_dir / ".lock").unlink()
    with pytest.raises(UserError, match="Leave these out"):
        configure([TASK, "--run-dir", str(run_dir), "--seed", "9"])
    assert (run_dir / ".lock").exists() is not is_new


def test_restarts_of_torchrun_need_a_run_directory(run: Run, tmp_path: Path) -> None:
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    place |= {"MASTER_PORT": "1", "TORCHELASTIC_MAX_RESTARTS": "1"}
    result = run("train", TASK, *SIX, **place)
    assert result.returncode == 2
    assert "add --run-dir DIR" in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_run_that_was_killed_at_once_begins_again_in_its_place(run: Run, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    record = {"id": "1", "task": TASK, "status": "running", "attempts": [{"status": "running"}]}
    (tmp_path / "d/run.json").write_text(json.dumps(record))
    result = run("train", TASK, *SIX, "--run-dir", "d")
    assert result.returncode == 0, result.stderr
    assert len(rows(tmp_path / "d")) == 6
    assert [one["status"] for one in read_record(tmp_path / "d")["attempts"]] == [
        "killed",
        "finished",
    ]


def test_metrics_that_are_lost_are_counted_and_a_folder_in_their_place_is_refused(
    run: Run, tmp_path: Path
) -> None:
    command = ("train", TASK, *changed(SIX, "--agent.max-iterations", "5"), "--run-dir", "d")
    assert run(*command).returncode == 0
    metrics = tmp_path / "d/metrics.csv"
    metrics.unlink()
    metrics.mkdir()
    before = everything(tmp_path)
    refused = run(*changed(command, "--agent.max-iterations", "6"))
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "d/metrics.csv is a folder; it must be a file" in refused.stderr
    assert everything(tmp_path) == before
    metrics.rmdir()
    for length, words in (("6", "metrics.csv lacks the rows of the last 5 iterations"), ("7", "")):
        more = run(*changed(command, "--agent.max-iterations", length))
        assert more.returncode == 0, more.stderr
        assert words in more.stdout
        assert ("lacks" in more.stdout) == bool(words)
    # A run of its own begins without its parent's rows.
    fork = ("--resume", "d", "--fork", "--run-dir", "e", "--agent.max-iterations")
    assert run("train", TASK, *fork, "8").returncode == 0
    again = run("train", TASK, "--run-dir", "e", "--agent.max-iterations", "9")
    assert again.returncode == 0, again.stderr
    assert "lacks" not in again.stdout


def test_metrics_that_become_a_folder_do_not_end_a_run(run: Run, tmp_path: Path) -> None:
    write_noisy(tmp_path, step="os.remove('d/metrics.csv'); os.mkdir('d/metrics.csv')")
    result = run("train", "noisy", "--run-dir", "d", "--agent.max-iterations", "2")
    assert result.returncode == 0, result.stderr
    assert "metrics.csv: the iterations are not known: it is not a regular file" in result.stderr
    assert "Traceback" not in result.stderr
    assert read_record(tmp_path / "d")["status"] == "finished"


def test_a_pod_that_begins_again_continues_a_task_of_its_own_folder(
    run: Run, tmp_path: Path, state: Path
) -> None:
    copy_task(tmp_path / "tasks", "mine")
    command = ("train", "mine-balance", *SIX, "--agent.save-interval", "3", "--as-trained")
    command = (*command, "--run-dir", "d")
    assert run(*command).returncode == 0
    for name in ("model_6.pt", "final_model.pt"):  # As if killed after the third iteration.
        (tmp_path / "d/checkpoints" / name).unlink()
    shutil.rmtree(state)  # It was on the pod's own disk.
    again = run(*command)
    assert again.returncode == 0, again.stderr
    assert "as it was when" in again.stdout
    assert read_record(tmp_path / "d")["status"] == "finished"
