"""`play`: whole episodes of a policy, and what a user may get wrong."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from mjfleet.tools.play.policy_episodes import STATISTIC_COLUMNS, EpisodeSums

from ..conftest import REPOSITORY, Output, Refusal, Run, needs_drawing, read_video
from ..runs.test_damaged_runs import RUN, call
from .arm import method, write_arm

GO2 = REPOSITORY / "tasks/go2/pretrained/go2-velocity-flat.pt"
ZERO = ("cartpole-balance", "--actions", "zero")
SHORT = ("--env.episode-seconds", "0.5")


def column(table: str, name: str) -> list[float]:
    """The numbers beside a name."""
    (line,) = re.findall(rf"^{name} +(.*)$", table, flags=re.MULTILINE)
    return [float(number) for number in line.split()]


def test_a_run_is_played_by_its_names_and_on_either_engine(
    run: Run, output: Output, tmp_path: Path
) -> None:
    run_dir = Path(shutil.copytree(RUN, tmp_path / "logs" / "cartpole-balance" / RUN.name))
    returns = []
    for engine, wanted in (("native", ["latest"]), ("warp", ["--resume", "latest"])):
        played = output("play", *wanted, *SHORT, "--engine", engine)  # The run names its task.
        assert "8 episodes" in played
        assert column(played, "length") == [10.0, 0.0, 10.0, 10.0]
        assert column(played, "return") == column(played, "reward/balance")
        returns.append(column(played, "return")[0])
    assert max(returns) < 1.1 * min(returns)
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]

    # The library that trained a policy is not needed.
    config = run_dir / "config.yaml"
    config.write_text(config.read_text().replace("library: rsl_rl", "library: skrl-jax"))
    without = "import sys\nsys.modules['jax'] = sys.modules['skrl'] = None\n"
    played = output("play", "latest", *SHORT, "--engine", "native", late=without)
    assert column(played, "return")[0] == returns[0]

    # A file alone is played with the task's own numbers.
    shutil.copy(run_dir / "checkpoints/model_3.pt", tmp_path / "policy.pt")
    alone = ("cartpole-balance", "--resume", "policy.pt", *SHORT, "--episodes", "65")
    assert "128 episodes" in output("play", *alone)

    shutil.copytree(run_dir, tmp_path / "begun", ignore=shutil.ignore_patterns("*.pt"))
    begun = run("play", "begun")
    assert (begun.returncode, "has no checkpoint yet" in begun.stderr) == (2, True)
    assert "begins anew" not in begun.stdout + begun.stderr


def test_no_two_columns_of_the_table_touch() -> None:
    numbers: dict[str, float] = dict.fromkeys(STATISTIC_COLUMNS, -1.2345e-05)
    table = EpisodeSums(1, 1.0, {"reward/a_name_as_long_as_a_column": numbers}).table
    shown = column(table, "reward/a_name_as_long_as_a_column")
    assert shown == pytest.approx([-1.2345e-05] * 4, rel=1e-2)


def test_a_robot_walks_with_the_policy_that_comes_with_it(output: Output, tmp_path: Path) -> None:
    few = ("--env.num-envs", "8", "--env.episode-seconds", "3")
    played = output("play", "go1-velocity-flat", "--pretrained", *few)
    assert column(played, "length")[0] == 150.0
    assert column(played, "task/velocity_error")[0] < 0.35
    assert not list(tmp_path.iterdir())


def test_a_number_that_is_not_finite_is_null_in_the_file(here: Path, printed: Output) -> None:
    write_arm(here, method("metrics", '{"lost": self.sim.qpos[:, 0] / 0, "kept": self._one}'))
    short = ("--env.num-envs", "2", *SHORT, "--gpu-ids", "None")
    printed("play", "arm", "--actions", "zero", *short, "--output", "played.json")
    played = json.loads((here / "played.json").read_text(), parse_constant=pytest.fail)
    assert [played[f"task/{name}"]["mean"] for name in ("lost", "kept")] == [None, 1.0]


@needs_drawing
def test_a_task_can_be_looked_at_without_a_policy(output: Output, tmp_path: Path) -> None:
    short = ("--env.num-envs", "2", "--env.episode-seconds", "0.5")
    video = ("--video", "wild.mp4", "--video-seconds", "0.75")
    wild = output("play", "cartpole-balance", "--actions", "random", *short, *video)
    assert wild.endswith("wrote wild.mp4\n")
    assert column(wild, "length")[0] == 10.0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["wild.mp4"]
    frames = read_video(tmp_path / "wild.mp4")
    assert frames.shape == (15, 480, 640, 3)  # Longer than an episode.
    assert (frames[0] != frames[-1]).any()


@needs_drawing
def test_a_video_shows_what_a_camera_sees_beside_the_scene(output: Output, tmp_path: Path) -> None:
    short = ("--env.num-envs", "4", "--env.episode-seconds", "0.5", "--video-seconds", "0.3")
    for name, flags in (("scene.mp4", ()), ("seen.mp4", ("--camera", "eye"))):
        output("play", "cartpole-balance-depth", *ZERO[1:], *short, "--video", name, *flags)
    scene, seen = (read_video(tmp_path / f"{name}.mp4").astype(int) for name in ("scene", "seen"))
    differs = np.abs(scene - seen).max(axis=3) > 40
    # The images of 32 x 32 pixels, three times as large, are in the corner of each environment.
    corners = np.zeros((480, 640), bool)
    for top, right in ((0, 320), (0, 640), (240, 320), (240, 640)):
        corners[top : top + 96, right - 96 : right] = True
    assert differs[:, corners].mean() > 0.5
    assert differs[:, ~corners].mean() < 0.01


def test_a_run_with_damaged_files_is_no_mistyped_task(here: Path, refusal: Refusal) -> None:
    (here / "a").mkdir()
    (here / "a/run.json").write_text("{")
    assert refusal("play", "a").startswith("error: a/run.json: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cartpole-balance"], "--resume"),
        (["cartpole-balance", "--resume", "latest"], "there is no run of the task"),
        (["cartpol-balance"], "Did you mean cartpole-balance"),
        (["cartpol-balance"], "no run of yours in logs has a name that begins with it"),
        (["cartpole-balance", "--pretrained"], "go1-velocity-flat, go1-velocity-rough"),
        (["cartpole-balance", "--resume", str(GO2)], "name go2-velocity-flat as the task"),
        (["go1-velocity-flat", "--pretrained", "--env.history", "5"], "another network"),
        ([*ZERO, "--resume", "latest"], "--actions"),
        ([*ZERO, "--video-seconds", "3"], "--video-seconds is for --video"),
        ([*ZERO, "--camera", "eye"], "--camera is for --viewer or --video FILE"),
        (
            [*ZERO, "--video", "a.mp4", "--camera", "eye"],
            "--camera eye: the task sees by: none",
        ),
        ([*ZERO, "--as-trained"], "--as-trained is for a trained policy"),
        ([*ZERO, "--output", "run.json"], "a run's own file has this name"),
        ([*ZERO, "--viewer", "native"], "--viewer web"),
        ([*ZERO, "--viewer", "native", "--port", "80"], "--port is for --viewer web"),
        ([*ZERO, "--viewer", "web", "--episodes", "3"], "--episodes"),
        ([*ZERO, "--viewer", "web", "--host", "nowhere.invalid"], "nowhere.invalid"),
        ([*ZERO, "--viewer", "web", "--host", "::1"], "--host ::1: it must be a name or an IPv4"),
        ([*ZERO, "--viewer", "web", "--host", "a..b"], "--host a..b: it must be a name"),
    ],
)
def test_mistakes_are_answered(
    here: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setenv("DISPLAY", ":98765")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    code, shown = call("play", *arguments)
    assert (code, message in shown) == (2, True), shown
    assert not list(here.iterdir())
