"""What a clip shows is drawn as a ghost, and one clip is played without ends of episodes."""

import json
from pathlib import Path

import mujoco
import numpy as np
import torch

from mjfleet.env import EnvShard
from mjfleet.env.step_recorder import StepRecorder
from mjfleet.tools.report.logged_run import LoggedRun
from mjfleet.tools.report.results import tables
from mjfleet.video.drawing import GHOST_COLOUR, add_ghost, skeleton
from mjfleet.video.state_recording import StateRecorder

from ..conftest import Output, Refusal
from .test_tracking_env import build

PLAY = (
    "play", "g1-tracking", "--actions", "zero", "--gpu-ids", "None", "--env.num-envs", "2",
    "--env.clips", "task:clips/walk.npz", "task:clips/squat.npz",
)  # fmt: skip


def test_a_recording_has_what_the_clip_showed(tmp_path: Path) -> None:
    env = build(tmp_path, shard=EnvShard(0, 4, 4))
    env.recorder = StepRecorder(num_steps=1)
    recorder, wanted = StateRecorder(env, 0.1), []
    for _ in range(recorder.length):
        wanted.append(env.motion.now().qpos)
        env.step(torch.zeros(4, 3))
        recorder.take()
    steps = recorder.finish("clip").steps
    torch.testing.assert_close(
        torch.from_numpy(steps["ghost"][:3]), torch.stack(wanted)[: 2 * len(steps["ghost"]) : 2][:3]
    )


def test_a_ghost_is_drawn_where_it_is(tmp_path: Path) -> None:
    env = build(tmp_path)
    model, data = env.sim.model, mujoco.MjData(env.sim.model)
    scene = mujoco.MjvScene(model, 100)
    qpos = env.motion.now().qpos[0].numpy()
    add_ghost(scene, model, data, qpos)
    drawn = [scene.geoms[i] for i in range(scene.ngeom)]
    assert len(drawn) == model.ngeom - 1  # Not the floor.
    assert all(np.allclose(geom.rgba, GHOST_COLOUR) for geom in drawn)
    np.testing.assert_allclose(drawn[0].pos, qpos[:3], atol=1e-5)
    lines = skeleton(model, data, qpos)
    np.testing.assert_allclose(lines[0], data.xpos[[2, 1]], atol=1e-9)
    assert len(lines) == 3


def test_one_clip_is_played_to_its_end_without_failures(
    output: Output, refusal: Refusal, tmp_path: Path
) -> None:
    shown = output(*PLAY, "--clip", "squat", "--no-terminations", "--output", "numbers.json")
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert numbers["length"]["min"] == 250
    assert numbers["success on squat"]["mean"] == 1.0
    assert "anchor_error on squat" in shown
    assert "walk" not in shown
    both = output(*PLAY)
    assert "success on walk" in both
    assert "success on squat" in both
    in_folder = "--env.clips", "task:clips", "--clip", "run"
    assert "has sidestep, squat, turn, walk" in refusal(*PLAY[:-3], *in_folder)
    assert "--clip run: --env.clips has walk, squat" in refusal(*PLAY, "--clip", "run")
    cartpole = ("play", "cartpole-balance", "--actions", "zero", "--gpu-ids", "None")
    assert "--clip run: the task has no clips" in refusal(*cartpole, "--clip", "run")


def test_a_report_has_a_row_for_each_clip() -> None:
    columns = {f"eval/clip/{c}/success": np.array([0.0, v]) for c, v in (("walk", 1), ("run", 0.5))}
    run = LoggedRun.__new__(LoggedRun)
    object.__setattr__(run, "columns", columns)
    object.__setattr__(run, "settings", {})
    shown = tables({"mine": [run]})["Clips"]
    assert shown == {"1 mine: walk": {"success": [1.0]}, "1 mine: run": {"success": [0.5]}}
