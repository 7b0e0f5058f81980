"""Videos of a run: files that can be read, and training that does not depend on them."""

import os
import time
from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np
import psutil
import pytest

from mjfleet.video.render_process import NICE, RenderProcess, render
from mjfleet.video.state_recording import StateRecording, pack_model

from ..conftest import TESTS, Run, changed, needs_drawing, only_run, read_video, rows

TINY = (
    "cartpole-balance", "--env.num-envs", "4", "--env.episode-seconds", "0.5",
    "--agent.num-steps-per-env", "4", "--agent.max-iterations", "2", "--video-interval", "1",
)  # fmt: skip


def change(a: np.ndarray, b: np.ndarray) -> float:
    """Mean difference of two pictures, of 255."""
    return float(np.abs(a.astype(int) - b).mean())


@needs_drawing
@pytest.mark.slow
def test_two_workers_leave_videos_of_rank_0_and_the_last_one_always(
    run: Run, tmp_path: Path
) -> None:
    result = run("train", *changed(TINY, "--cpu-workers", "2", "--agent.max-iterations", "3"))
    assert (result.returncode, "Traceback" in result.stderr) == (0, False)
    videos = sorted((only_run(tmp_path) / "videos").iterdir())
    # The second one is due while the first one is drawn, unless that was very fast.
    assert {"iteration_1.mp4", "iteration_3.mp4"} <= {video.name for video in videos}
    frames = np.concatenate([read_video(video) for video in videos])
    assert frames.shape == (len(videos) * 4, 480, 640, 3)
    assert change(frames[0], frames[-1]) > 0.1


@pytest.mark.slow
def test_training_ends_well_where_nothing_can_be_drawn(run: Run, tmp_path: Path) -> None:
    result = run("train", *TINY, MUJOCO_GL="bogus")
    assert result.returncode == 0
    assert len(result.stderr.splitlines()) == 1
    assert "mjfleet doctor" in result.stderr
    assert len(rows(only_run(tmp_path))) == 2
    assert not (only_run(tmp_path) / "videos").exists()


JOINTS = 4 * '<joint axis="0 1 0" armature="0.1"/>'
ARM = f"""<mujoco><worldbody>
  <camera pos="0 0 5" xyaxes="1 0 0 0 -1 0"/>
  <body><geom size="0.1"/>
    <body>{JOINTS}<geom size="0.1"/><body pos="0 0 1">{JOINTS}<geom size="0.1"/></body></body>
  </body>
  <body pos="1 0 0"><freejoint/><geom size="0.1"/></body>
</worldbody></mujoco>"""
"""An arm that stands on the floor, a ball, and a camera that looks at the sky."""


def box() -> StateRecording:
    """A box that is at rest, then has an arrow, then is far away."""
    model = mujoco.MjModel.from_xml_path(str(TESTS / "models/box.xml"))
    qpos = np.tile(model.qpos0, (3, 1, 1))
    qpos[2, 0, :2] = 50.0
    arrow = np.zeros((3, 1, 2, 3))
    arrow[1, 0] = [[0.0, 0.0, 0.2], [0.1, 0.0, 0.0]]
    steps = {"time": np.zeros((3, 1)), "qpos": qpos}
    return StateRecording("box", 10.0, pack_model(model), steps | {"arrow/command": arrow})


@needs_drawing
def test_an_arm_is_seen_by_the_models_camera_though_something_else_moves_freely(
    tmp_path: Path,
) -> None:
    model = mujoco.MjModel.from_xml_string(ARM)
    qpos = np.tile(model.qpos0, (2, 1, 1))
    qpos[1, 0, 0] = 1.0
    steps = {"time": np.zeros((2, 1)), "qpos": qpos}
    render(StateRecording("arm", 10.0, pack_model(model), steps), tmp_path / "arm.mp4")
    first, last = read_video(tmp_path / "arm.mp4")
    assert change(first, last) < 0.1


@needs_drawing
def test_each_arrow_is_drawn_though_there_are_more_of_them_than_colours(tmp_path: Path) -> None:
    recording = box()
    arrows = {f"arrow/{i}": 0 * recording.steps["arrow/command"] for i in range(4)}
    arrows |= recording.steps
    render(replace(recording, steps=arrows), tmp_path / "box.mp4")
    first, pointed, _ = read_video(tmp_path / "box.mp4")
    assert change(first, pointed) > 0.03


@needs_drawing
def test_a_free_body_is_followed_and_drawn_at_the_lowest_priority(
    tmp_path: Path,
) -> None:
    with RenderProcess(box(), tmp_path / "box.mp4", NICE) as process:
        drawing = psutil.Process(process.pid)
        while drawing.nice() != NICE:
            time.sleep(0.01)
        # Linux shares the processor among sessions first.
        assert os.getsid(drawing.pid) == os.getsid(0)
        assert os.getpgid(drawing.pid) != os.getpgrp()
    render(box(), tmp_path / "box.mp4")
    first, pointed, moved = read_video(tmp_path / "box.mp4")
    # A free body is followed, and an arrow is drawn.
    assert change(first, pointed) > 0.03
    middle = slice(180, 300), slice(200, 440)  # All of it is the box.
    assert first[middle].min() > 20
    assert change(first[middle], moved[middle]) < 2
