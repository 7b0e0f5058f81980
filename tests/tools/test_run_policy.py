"""The run_policy.py that an export writes: what it is told, and what a user may get wrong."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ..conftest import Run
from .test_export import run_file


def test_commands_hold_wherever_they_are_given(run: Run, tmp_path: Path) -> None:
    task = ("go1-velocity-flat", "--pretrained", "--output", "a.onnx")
    assert run("mjfleet", "export", *task).returncode == 0
    play, walk, turn = ("run_a.py", "--seconds", "1"), "forward=0.5", "turn_left=0.5@0.2"
    both = run_file(tmp_path, *play, "--command", walk, turn)
    assert run_file(tmp_path, *play, "--command", walk, "--command", turn) == both
    assert run_file(tmp_path, *play, "--command", turn) != both


@pytest.mark.slow
def test_no_policy_replaces_that_of_another_task(run: Run, tmp_path: Path) -> None:
    robot, other = ("go1-velocity-flat", "--pretrained"), ("panda-reach", "--pretrained")
    for _ in range(2):
        assert run("mjfleet", "export", *robot).returncode == 0
        (tmp_path / "exported/run_policy.py").write_text("# Mine.")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    refused = run("mjfleet", "export", *other)
    assert refused.returncode == 2
    assert "is of the task go1-velocity-flat, not of panda-reach" in refused.stderr
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert run("mjfleet", "export", *other, "--output", "b.onnx").returncode == 0


@pytest.mark.slow
def test_what_a_run_file_cannot_use_is_said(run: Run, tmp_path: Path) -> None:
    for task in ("go1", "go2", "g1"):
        done = run(
            "mjfleet", "export", f"{task}-velocity-flat", "--pretrained", "--output", f"{task}.onnx"
        )
        assert done.returncode == 0, done.stderr
    shutil.move(tmp_path / "g1.mjb", tmp_path / "go2.mjb")
    commands = np.zeros((5, 2, 3))
    np.savez(tmp_path / "other.npz", steps=5, commands=commands, qpos=np.zeros((2, 9)))
    (tmp_path / "text.npz").write_text("text")
    for name, starts, told in (
        ("none", np.zeros((0, 19)), commands[:, :0]),
        ("fewer", np.zeros((1, 19)), commands),
        ("nan", np.full((2, 19), np.nan), commands),
        ("far", np.zeros((2, 19)), commands + 1.5),
    ):
        np.savez(tmp_path / f"{name}.npz", steps=5, commands=told, qpos=starts)
    script = (tmp_path / "run_go1.py").read_text()
    changed = script.replace("return np.concatenate((*self.frames, command))", "return command")
    (tmp_path / "run_changed.py").write_text(changed)
    play = ("--seconds", "0.1")
    for file, arguments, said in (
        ("go1", [*play, "--command", "forward=5"], "a value from -1 to 1"),
        ("go1", [*play, "--command", "forward=fast"], "forward=VALUE"),
        ("go1", [*play, "--command", "up=1"], "forward, left, turn_left"),
        ("go1", [*play, "--command", "left=1@2", "left=0@2.0"], "one value of a command for each"),
        ("go1", ["--command", "forward=1"], "--seconds"),
        ("go1", ["--seconds", "0"], "0 is no number of seconds above 0"),
        ("go1", ["--episodes", "no.npz"], "no.npz: No such file"),
        ("go1", ["--episodes", "text.npz"], "text.npz was not written by `play --save-episodes`"),
        ("go1", ["--episodes", "other.npz"], "qpos has the shape (9,), not (19,)"),
        ("go1", ["--episodes", "none.npz"], "none.npz holds no episodes"),
        ("go1", ["--episodes", "fewer.npz"], "or not the same number in each field"),
        ("go1", ["--episodes", "nan.npz"], "qpos has numbers that are not finite"),
        ("go1", ["--episodes", "far.npz"], "forward is from 1.5 to 1.5; its range is from -1 to 1"),
        ("changed", play, "Robot.observe() returns 3 numbers; the policy takes"),
        ("go2", play, "go2.mjb is another robot"),
        ("g1", play, "there is no "),
    ):
        done = subprocess.run(
            [sys.executable, f"run_{file}.py", *arguments],
            check=False, cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
        assert "Traceback" not in done.stderr
