"""examples/run_policy.py: exported policies in plain MuJoCo, without mjfleet and torch."""

import json
import os
import runpy
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from mjfleet.env import Env

from ..conftest import REPOSITORY, Output, run_warm
from ..env.test_env import BUNDLED, build_own
from ..runs.test_damaged_runs import RUN
from ..test_docs import BLOCK
from .test_export import RUN_POLICY, elsewhere, load_example
from .test_play import column

EXACT = {
    "noise": 0.0, "delay": (0, 0), "push_speed": 0.0, "friction": (0.6, 0.6), "payload": (0.0, 0.0),
    "center_of_mass": (0.0, 0.0), "gains": (1.0, 1.0), "strength": (1.0, 1.0),
}  # fmt: skip
"""The Go1 of the model, without noise, delays and pushes."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, warm: "subprocess.Popen[str]") -> Path:
    """A folder with go1.onnx, a policy that walks, pole.onnx, and what is beside them."""
    folder = tmp_path_factory.mktemp("files")
    for policy, output in (
        (("go1-velocity-flat", "--pretrained"), "go1.onnx"),
        ((str(RUN),), "pole.onnx"),
    ):
        arguments = ("export", *policy, "--output", output)
        done = run_warm(warm, "mjfleet", arguments, dict(os.environ), folder)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


def figures(folder: Path, *arguments: str) -> str:
    """What the script prints in a process that has neither mjfleet nor torch."""
    script = f"import runpy\nsys.argv[1:] = {arguments}\n"
    return elsewhere(folder, f"{script}runpy.run_path({str(RUN_POLICY)!r}, None, '__main__')\n")


def follow(policy: Path, env: Env[Any]) -> None:
    """Check that the script observes and moves as the task does, from the same state."""
    robot = load_example().Robot(policy)
    robot.known["start"] = {field: getattr(env.sim, field)[0] for field in ("qpos", "qvel")}
    robot.reset()
    for _ in range(50):
        expected = env.get_observations()["actor"][0].numpy()
        robot.command = {name: value[0].item() for name, (value, *_) in env.commands().items()}
        assert robot.step() == pytest.approx(expected, abs=1e-3)
        assert not env.step(torch.as_tensor(robot.action[None]).float())[2].any()
    assert robot.data.qpos == pytest.approx(env.sim.qpos[0].numpy(), abs=1e-3)


def test_a_robot_follows_its_command_as_it_does_in_play(files: Path, output: Output) -> None:
    played = output(
        "play", "go1-velocity-flat", "--pretrained", "--env.num-envs", "8",
        "--env.episode-seconds", "4", "--env.random.noise", "0", "--env.random.push-speed", "0",
        "--env.random.delay", "0", "0", "--env.command.forward", "0.5", "0.5",
        "--env.command.yaw", "0.5", "0.5", "--env.command.lateral", "0", "0",
        "--env.command.heading-share", "0", "--env.command.standing-share", "0",
    )  # fmt: skip
    command = ("--command", "forward=0.5", "turn_left=0.5")
    walks = figures(files, "go1.onnx", *command, "--seconds", "4")
    for name in ("velocity_error", "yaw_error"):
        reference = column(played, f"task/{name}")[0]
        assert column(walks, name)[0] == pytest.approx(reference, rel=0.3)
    cfg: Any = BUNDLED["go1-velocity-flat"].task.env
    random = replace(cfg.random, **EXACT)
    follow(files / "go1.onnx", build_own("go1-velocity-flat", 1, random=random))


def test_the_guides_controller_moves_a_robot_as_the_simulation_does(files: Path) -> None:
    """The code of docs/deploy.md, fed with what a robot's sensors measure."""
    policy = onnxruntime.InferenceSession(files / "go1.onnx")
    cfg: Any = BUNDLED["go1-velocity-flat"].task.env
    calm = replace(cfg.random, noise=0.0, delay=(0, 0), push_speed=0.0)
    env: Any = build_own("go1-velocity-flat", 1, random=calm)
    model = env.sim.model
    known = json.loads((files / "go1.json").read_text())
    driven = [model.joint(model.actuator(i).trnid[0]).name for i in range(model.nu)]
    assert known["joint_names"] == driven
    (group,) = known["observations"]
    assert env.get_observations()["actor"].shape[1] == known["observation_size"] == group["size"]
    assert sum(part["size"] for part in group["parts"]) == group["size"]

    measured: dict[str, list[Any]] = {
        name: [] for name in ("gyro", "up", "angles", "speeds", "command", "targets")
    }
    for _ in range(20):
        now = (env.gyro, env.up, env.joints, env.speeds, env.command)
        for name, value in zip(measured, now, strict=False):
            measured[name].append(value[0].numpy().copy())
        rows = env.get_observations()["actor"].numpy()
        actions = policy.run(None, {"observations": rows})[0]
        assert not env.step(torch.as_tensor(actions))[2].any()
        measured["targets"].append(env.sim.ctrl[0].numpy().copy())
    arrays: Any = {name: np.stack(values) for name, values in measured.items()}
    np.savez(files / "robot.npz", **arrays)
    blocks = BLOCK.findall((REPOSITORY / "docs/deploy.md").read_text())
    (code,) = [text for language, text in blocks if "class Controller" in text]
    elsewhere(
        files,
        f"{code}\n"
        "robot = np.load('robot.npz')\n"
        "controller = Controller('go1.onnx')\n"
        "for *sensors, targets in zip(*(robot[name] for name in robot.files)):\n"
        "    np.testing.assert_allclose(controller.targets(*sensors), targets, atol=1e-5)\n",
    )


def test_a_pole_moves_as_it_does_in_the_task(files: Path) -> None:
    assert column(figures(files, "pole.onnx", "--seconds", "0.5"), "upright")[0] > 0.5
    follow(files / "pole.onnx", build_own("cartpole-balance", 1))


def test_a_task_that_nobody_judges_is_played_and_the_script_says_so(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in ("onnx", "mjb"):
        shutil.copy(files / f"pole.{kind}", tmp_path / f"arm.{kind}")
    known = (files / "pole.json").read_text().replace("cartpole-balance", "arm-reach")
    (tmp_path / "arm.json").write_text(known)
    script = tmp_path / "run_policy.py"  # With `observe` completed for the task.
    script.write_text(RUN_POLICY.read_text().replace('startswith("cartpole-")', "strip()", 1))
    runpy.run_path(str(script))["main"]([str(tmp_path / "arm.onnx"), "--seconds", "0.5"])
    assert capsys.readouterr().out == (
        f"played 10 steps; for figures, complete judge() in {script} for arm-reach\n"
    )


def test_what_it_cannot_use_is_said(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(files)
    for display in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(display, raising=False)
    known = json.loads(Path("go1.json").read_text())
    (frames, _) = known["observations"][0]["parts"]
    frames["parts"].append({"name": "temperature", "size": 1})
    for new, old in (("warm", "go1"), ("arm", "pole"), ("eye", "pole")):
        for kind in ("onnx", "mjb"):
            shutil.copy(f"{old}.{kind}", f"{new}.{kind}")
    Path("warm.json").write_text(json.dumps(known))
    sees = {"images": [{"name": "actor", "shape": [2, 32, 32], "type": "float32"}]}
    Path("eye.json").write_text(json.dumps(json.loads(Path("pole.json").read_text()) | sees))
    Path("arm.json").write_text(Path("pole.json").read_text().replace("cartpole-", "arm-"))
    for name, arguments, message in (
        ("none", [], "there is no none.onnx"),
        ("go1.json", [], "go1.json is no .onnx file"),
        ("go1", ["--command", "forward=5"], "forward must be from -1 to 1"),
        ("go1", ["--command", "forward=fast"], "forward=fast: could not convert"),
        ("go1", ["--command", "up=1"], "the commands are forward, left, turn_left"),
        ("go1", ["--command", "left=9", "--command", "forward=0.5"], "left must be from -1 to 1"),
        ("go1", ["--clip", "walk", "--seconds", "1"], "--clip walk: go1.onnx follows no clip"),
        ("go1", [], "no display with OpenGL for a window here: give --seconds"),
        ("go1", ["--seconds", "0"], "--seconds must be a number above 0"),
        ("warm", ["--seconds", "1"], "observe() must return 1 numbers as 'temperature'"),
        ("arm", ["--seconds", "1"], "complete observe()"),
        ("eye", ["--seconds", "1"], "eye.onnx observes images"),
    ):
        with pytest.raises(SystemExit) as ended:
            load_example().main([name if "." in name else f"{name}.onnx", *arguments])
        assert message in capsys.readouterr().err + str(ended.value)
