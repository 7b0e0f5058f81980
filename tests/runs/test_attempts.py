"""Each attempt has its own files; one of them counts, and what others have written is kept."""

import json
import logging
import os
import shutil
from pathlib import Path

import pytest
import yaml

from mjfleet.errors import UserError
from mjfleet.rl.checkpoints.files import pack_checkpoint
from mjfleet.runs.attempts import (
    attempt_of,
    attempts_in,
    complete,
    config_of,
    count_last_attempt,
    current_attempt,
    replaced_checkpoints,
    undone_checkpoint,
    write_attempts,
)
from mjfleet.runs.checkpoints import checkpoints_in
from mjfleet.runs.named_run import read_run
from mjfleet.runs.run_directory import check_run_folder
from mjfleet.runs.run_json import read_record, write_record

from ..conftest import Run, changed, only_run, rows
from .test_damaged_runs import everything
from .test_failed_resume import TASK, edit, record, write_task
from .test_resume import SIX

BALANCE = "cartpole-balance"
KEEP = ("--agent.save-interval", "1")
EPISODES = ("--episodes", "2")


def test_each_checkpoint_is_used_with_the_configuration_and_code_of_its_attempt(
    run: Run, tmp_path: Path
) -> None:
    task = write_task(tmp_path)
    edit(task)
    assert run("train", TASK, *SIX, *KEEP).returncode == 0
    run_dir = only_run(tmp_path, TASK)
    older = ("--resume", f"{run_dir}/checkpoints/model_3.pt", "--agent.max-iterations", "8")
    # The second attempt has other code and is undone; the third has other code again.
    edit(task, setup="raise ValueError(1)")
    assert run("train", TASK, *older, "--hang-timeout", "601").returncode == 1
    edit(task, setup="self.gravity = 1.0")
    third = run("train", TASK, *older, "--hang-timeout", "602")
    assert third.returncode == 0, third.stderr
    attempts = record(run_dir)["attempts"]
    assert [one.get("is_undone", False) for one in attempts] == [False, True, False]
    assert len({one["code"]["hash"] for one in attempts}) == 3
    limits = {}
    for number in (1, 2, 3):
        config = yaml.safe_load((run_dir / f"attempts/{number}/config.yaml").read_text())
        limits[number] = config["hang_timeout"]
        assert (run_dir / f"attempts/{number}/plan.json").exists()
    assert [limits[2], limits[3]] == [601, 602]
    assert (run_dir / "config.yaml").read_bytes() == (
        run_dir / "attempts/3/config.yaml"
    ).read_bytes()

    (run_dir / "config.yaml").unlink()
    (replaced,) = run_dir.glob("checkpoints/replaced_*")
    for path, number in (
        (replaced / "model_6.pt", 1),
        (run_dir / "checkpoints/model_3.pt", 1),
        (run_dir / "checkpoints/model_8.pt", 3),
        (run_dir / "checkpoints/final_model.pt", 3),
    ):
        assert attempt_of(path, attempts) == number
        assert config_of(run_dir, path) == run_dir / f"attempts/{number}/config.yaml"
        code = attempts[number - 1]["code"]["hash"][:16]
        said = run("play", TASK, "--resume", str(path), "--as-trained", *EPISODES)
        assert said.returncode == 0, said.stderr
        assert code in said.stdout
    for command in (
        ("mjfleet", "export", str(run_dir), "--format", "torchscript", "--output", "policy.pt"),
        ("mjfleet", "report", str(run_dir), "--output", "page.html"),
    ):
        result = run(*command)
        assert result.returncode == 0, result.stderr
    # The next start writes it again.
    again = run("train", "--resume", str(run_dir), "--agent.max-iterations", "9")
    assert again.returncode == 0, again.stderr
    assert "hang_timeout: 602" in (run_dir / "config.yaml").read_text()


def test_inspect_shows_the_dump_of_each_attempt_whatever_its_code(run: Run, tmp_path: Path) -> None:
    task = write_task(tmp_path)
    edit(task)
    assert run("train", TASK, *SIX, *KEEP).returncode == 0
    run_dir = only_run(tmp_path, TASK)
    more = ("train", TASK, "--resume", str(run_dir), "--agent.max-iterations", "8")
    for field in ("qpos", "qvel"):
        edit(task, apply=f"self.sim.{field}.fill_(float('nan'))")
        assert run(*more).returncode == 1
    attempts = record(run_dir)["attempts"]
    assert [one.get("is_undone", False) for one in attempts] == [False, True, True]
    assert len({one["code"]["hash"] for one in attempts}) == 3
    (run_dir / "config.yaml").unlink()
    shutil.rmtree(task)
    for path, first in (
        (run_dir, "qvel"),
        (run_dir / "failures/attempt_2/nan_rank0.npz", "qpos"),
        (run_dir / "failures/nan_rank0.npz", "qvel"),
    ):
        shown = run("mjfleet", "inspect", str(path))
        assert shown.returncode == 0, shown.stderr
        assert f"world 0: start/{first}[0]" in shown.stdout


def test_a_run_that_was_killed_after_its_last_checkpoint_is_finished_by_the_next_command(
    run: Run, tmp_path: Path
) -> None:
    assert run("train", BALANCE, *SIX, *KEEP).returncode == 0
    run_dir = only_run(tmp_path)
    folder = run_dir / "checkpoints"
    (folder / "final_model.pt").unlink()
    os.link(folder / "model_5.pt", folder / "final_model.pt")
    (attempt,) = attempts_in(run_dir)
    failed = {"status": "failed", "kind": "Killed", "cause": "killed"}
    write_record(run_dir, status="failed", attempts=[attempt | failed])
    result = run("train", "--resume", str(run_dir))
    assert (result.returncode, "nothing is left to do" in result.stdout) == (0, True)
    now = record(run_dir)
    assert (now["status"], now["attempts"][0]["status"]) == ("finished", "finished")
    assert now["attempts"][0]["cause"] == "killed"
    assert (folder / "final_model.pt").samefile(folder / "model_6.pt")


def begun(run_dir: Path, *tokens: str | None) -> Path:
    """Write a run whose attempts have these tokens; the first one has trained six iterations."""
    (run_dir / "checkpoints").mkdir(parents=True)
    attempts = [
        {"status": "finished", "started": f"2026-01-0{n}T00:00:00+00:00", "checkpoint": None}
        | ({} if token is None else {"token": token})
        for n, token in enumerate(tokens, 1)
    ]
    (run_dir / "run.json").write_text(json.dumps({"task": BALANCE, "attempts": attempts}))
    for number in range(1, len(tokens) + 1):
        (run_dir / f"attempts/{number}").mkdir(parents=True)
        (run_dir / f"attempts/{number}/config.yaml").write_text(f"agent: {{seed: {number}}}\n")
    text = "iteration,x\n" + "".join(f"{n},1\n" for n in range(1, 7))
    (run_dir / "metrics.csv").write_text(text)
    if tokens[0]:
        (run_dir / "attempts/current").write_text('{"attempt": 1, "begun": 0}')
    shutil.copy(run_dir / "attempts/1/config.yaml", run_dir)
    for iteration in (3, 6):
        save(run_dir, iteration, tokens[0])
    return run_dir


def save(run_dir: Path, iteration: int, token: str | None) -> Path:
    path = run_dir / f"checkpoints/model_{iteration}.pt"
    path.write_bytes(pack_checkpoint({}, {"iteration": iteration, "attempt": token}))
    return path


def test_a_later_attempt_counts_once_its_first_iteration_is_done(tmp_path: Path) -> None:
    run_dir = begun(tmp_path / "run", "a", "b")
    attempts = attempts_in(run_dir)
    attempts[1]["checkpoint"] = "model_3.pt"
    write_record(run_dir, attempts=attempts)
    assert current_attempt(run_dir, attempts) == (1, 0)
    assert undone_checkpoint(run_dir) == run_dir / "checkpoints/model_3.pt"
    count_last_attempt(run_dir, 3)
    assert current_attempt(run_dir, attempts) == (2, 3)
    assert undone_checkpoint(run_dir) is None
    assert [path.name for path in checkpoints_in(run_dir / "checkpoints")] == ["model_3.pt"]
    aside = run_dir / "checkpoints/replaced_2026-01-02_00-00-00"
    assert {path.name for path in aside.iterdir()} == {"model_6.pt", "metrics.csv"}
    assert "seed: 2" in (run_dir / "config.yaml").read_text()


@pytest.mark.parametrize("stops_at", ["pointer", "half", "config"])
def test_what_follows_the_pointer_is_done_again_at_the_next_start(
    tmp_path: Path, stops_at: str
) -> None:
    run_dir = begun(tmp_path / "run", "a", "b")
    save(run_dir, 9, "a")
    count_last_attempt(run_dir, 3)
    done = everything(run_dir)
    aside = run_dir / "checkpoints/replaced_2026-01-02_00-00-00"
    shutil.copy(run_dir / "attempts/1/config.yaml", run_dir)
    if stops_at != "config":
        (aside / "model_6.pt").rename(run_dir / "checkpoints/model_6.pt")
    if stops_at == "pointer":
        (aside / "model_9.pt").rename(run_dir / "checkpoints/model_9.pt")
    # Who only reads takes no checkpoint of the attempt before.
    assert read_run(run_dir, "").with_checkpoint().iteration == 3
    assert read_run(run_dir, "").config == {"agent": {"seed": 2}}
    complete(run_dir)
    assert everything(run_dir) == done
    complete(run_dir)
    assert everything(run_dir) == done


def test_a_damaged_checkpoint_of_the_attempt_is_not_taken_for_an_older_one(tmp_path: Path) -> None:
    run_dir = begun(tmp_path / "run", "a", "b")
    count_last_attempt(run_dir, 3)
    save(run_dir, 4, "b")
    save(run_dir, 5, "b").write_bytes(b"PK")
    assert replaced_checkpoints(run_dir) == []
    assert read_run(run_dir, "").with_checkpoint().iteration == 4


def test_whose_a_checkpoint_is(tmp_path: Path) -> None:
    """One of a fork's parent, of a download and of earlier versions has a token of no attempt."""
    own = begun(tmp_path / "own", "a", "b", "c")
    attempts = attempts_in(own)
    for token, number in (("a", 1), ("b", 2), ("c", 3), ("d", 1), (None, 1)):
        assert attempt_of(save(own, 7, token), attempts) == number
    download = begun(tmp_path / "download", None, "b", "c")
    attempts = attempts_in(download)
    assert attempt_of(save(download, 7, "x"), attempts) == 1
    assert attempt_of(save(download, 7, "c"), attempts) == 3
    # Earlier versions recorded the hash of the code alone, and kept configurations elsewhere.
    earlier = begun(tmp_path / "earlier", None, None, None)
    shutil.rmtree(earlier / "attempts")
    (earlier / "configs").mkdir()
    for number in (1, 2):
        (earlier / f"configs/attempt_{number}.yaml").write_text("{}")
    attempts = [
        one | {"code": {"hash": h}} for one, h in zip(attempts_in(earlier), "xxy", strict=True)
    ]
    write_record(earlier, attempts=attempts)
    for code, name in (
        ("x", "configs/attempt_2.yaml"),
        ("y", "config.yaml"),
        ("z", "config.yaml"),
    ):
        path = earlier / "checkpoints/model_7.pt"
        path.write_bytes(pack_checkpoint({}, {"iteration": 7, "task_hash": code}))
        assert config_of(earlier, path) == earlier / name


def test_without_a_readable_record_config_yaml_counts(tmp_path: Path) -> None:
    run_dir = begun(tmp_path / "run", "a", "b")
    (run_dir / "run.json").write_text("{")
    assert config_of(run_dir) == run_dir / "config.yaml"
    (tmp_path / "file").touch()
    assert config_of(tmp_path / "file") == tmp_path / "file/config.yaml"


@pytest.mark.parametrize("content", ["{", "[]", '{"attempt": 9, "begun": 1}', '{"attempt": "1"}'])
def test_a_damaged_pointer_is_named(tmp_path: Path, content: str) -> None:
    run_dir = begun(tmp_path / "run", "a", "b")
    (run_dir / "attempts/current").write_text(content)
    with pytest.raises(UserError, match="attempts/current: "):
        read_run(run_dir, "").with_checkpoint()


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_damaged_plan_changes_nothing_of_what_the_record_shows(
    tmp_path: Path, content: str
) -> None:
    run_dir = begun(tmp_path / "run", "a", "b")
    before = read_record(run_dir)
    (run_dir / "attempts/2").mkdir(parents=True, exist_ok=True)
    (run_dir / "attempts/2/plan.json").write_text(content)
    write_attempts(run_dir, attempts_in(run_dir))
    assert read_record(run_dir)["task"] == before["task"]


def test_a_mistake_leaves_no_copy_of_its_code_and_an_undone_attempt_keeps_it(
    run: Run, tmp_path: Path
) -> None:
    task = write_task(tmp_path)
    edit(task)
    assert run("train", TASK, *SIX).returncode == 0
    run_dir = only_run(tmp_path, TASK)
    more = ("train", TASK, "--resume", str(run_dir), "--agent.max-iterations", "8")
    edit(task, reward="other")
    assert run(*more).returncode == 2
    assert len([*(run_dir / "task").iterdir()]) == 1
    edit(task, setup="raise ValueError(1)")
    assert run(*more).returncode == 1
    assert len([*(run_dir / "task").iterdir()]) == 2


def test_checkpoints_may_be_a_link_to_a_folder_of_the_same_user(run: Run, tmp_path: Path) -> None:
    scratch, run_dir = tmp_path / "scratch", tmp_path / "d"
    scratch.mkdir()
    run_dir.mkdir()
    (run_dir / "checkpoints").symlink_to(scratch)
    command = ("train", BALANCE, *SIX, "--run-dir", "d")
    result = run(*command)
    assert result.returncode == 0, result.stderr
    assert (scratch / "model_6.pt").is_file()
    result = run(*changed(command, "--agent.max-iterations", "7"))
    assert result.returncode == 0, result.stderr
    assert [row["iteration"] for row in rows(run_dir)] == [*map(str, range(1, 8))]
    assert (run_dir / "checkpoints").is_symlink()
    # Who begins from it continues from it however often the command starts again.
    changed_value = ("--agent.algorithm.gamma", "0.9", "--agent.max-iterations", "8")
    fork = ("train", BALANCE, "--resume", "d", "--fork", "--run-dir", "f", *changed_value)
    assert run(*fork).returncode == 0
    parent = read_record(tmp_path / "f")["parent"]
    for path in (tmp_path / "f/checkpoints").iterdir():  # As if killed before it had the copy.
        path.unlink()
    assert run(*fork).returncode == 0
    assert read_record(tmp_path / "f")["parent"] == parent
    assert [*parent["changed"]] == ["agent.max_iterations", "agent.algorithm.gamma"]
    (scratch / "away").symlink_to(tmp_path)
    with pytest.raises(UserError, match="away in it is a symbolic link"):
        check_run_folder(run_dir)
    # What a mistake has made there is removed.
    other = tmp_path / "other"
    other.mkdir()
    (run_dir / "checkpoints").rename(tmp_path / "e")
    shutil.rmtree(run_dir)
    run_dir.mkdir()
    (run_dir / "checkpoints").symlink_to(other)
    misfit = ("--init-from", str(scratch / "model_6.pt"), "--agent.actor.hidden-dims", "3")
    (scratch / "away").unlink()
    assert run(*command, *misfit).returncode == 2
    assert [path.name for path in run_dir.iterdir()] == ["checkpoints"]
    assert not [*other.iterdir()]


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can give a folder away")
def test_a_link_to_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 12345, -1)
    (tmp_path / "d/checkpoints").symlink_to(tmp_path / "theirs")
    with pytest.raises(UserError, match="must lead to a folder of yours"):
        check_run_folder(tmp_path / "d")
    (tmp_path / "theirs").rmdir()
    with pytest.raises(UserError, match="must lead to a folder of yours"):
        check_run_folder(tmp_path / "d")


def test_what_the_launcher_warns_of_is_in_the_attempts_log(tmp_path: Path) -> None:
    from .test_run_directory import begin

    run = begin(tmp_path / "run")
    logging.getLogger("mjfleet").warning("no luck")
    run.end("failed")
    run.close()
    logging.getLogger("mjfleet").warning("later")
    assert (tmp_path / "run/attempts/1/launcher.log").read_text() == "no luck\n"
    assert read_record(tmp_path / "run")["status"] == "failed"
