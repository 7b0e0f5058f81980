"""An exported policy follows its clips in plain MuJoCo, and one of another size is refused."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from mjfleet.config import TrainConfig
from mjfleet.env import EnvShard
from mjfleet.errors import UserError
from mjfleet.rl.build_algorithm import policy_of
from mjfleet.tools.export.command import _write_graph
from mjfleet.tools.export.mjlab_form import FRAME
from mjfleet.tracking.config import AGENT, EndsConfig

from ..conftest import REPOSITORY
from .test_tracking_env import build


def run_policy() -> Any:
    path = REPOSITORY / "examples/run_policy.py"
    spec = importlib.util.spec_from_file_location("run_policy", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("estimates", [False, True])
def test_a_policy_observes_and_does_the_same_in_plain_mujoco(
    tmp_path: Path, estimates: bool
) -> None:
    shard = EnvShard(0, 2, 2)
    ends = EndsConfig(anchor_height=9.0, gravity=3.0, body_height=9.0)
    fields: dict[str, Any] = {"num_envs": 2, "state_estimation": estimates, "ends": ends}
    env = build(tmp_path, seconds=(1.0, 2.0), shard=shard, **fields)
    torch.manual_seed(1)
    actor = policy_of(env, replace(TrainConfig().agent, actor=AGENT.actor), lambda *_: None)
    actor.eval()
    output = tmp_path / "policy.onnx"
    assert _write_graph("small-tracking", (env, actor, 3), "onnx", output) == 0
    known = json.loads(output.with_suffix(".json").read_text())
    assert known["clips"] == [{"name": "clip_1", "frames": 51}, {"name": "clip_2", "frames": 101}]
    assert known["observation_size"] == env.get_observations()["actor"].shape[1]
    module = run_policy()
    robot = module.Robot(output, "clip_2")
    for _ in range(10):
        with torch.inference_mode():
            seen = env.get_observations()
            env.step(actor(seen))
        np.testing.assert_allclose(robot.step(), seen["actor"][1], atol=2e-4)
    np.testing.assert_allclose(robot.data.qpos, env.sim.qpos[1], atol=1e-4)
    assert set(module.judge(robot.data, robot.known, {})) == {"joint_error", "anchor_error"}
    with pytest.raises(SystemExit, match="the clips are clip_1, clip_2"):
        module.Robot(output, "clip_3")
    other = output.with_suffix(".json")
    other.write_text(json.dumps(known | {"observation_size": known["observation_size"] + 6}))
    with pytest.raises(SystemExit, match=r"policy\.onnx takes \d+ numbers, and policy\.json has"):
        module.Robot(output)


def test_mjlabs_form_returns_what_play_does_and_the_clips_frame(tmp_path: Path) -> None:
    env = build(tmp_path, seconds=(2.0,), shard=EnvShard(0, 2, 2), num_envs=2)
    torch.manual_seed(1)
    actor = policy_of(env, replace(TrainConfig().agent, actor=AGENT.actor), lambda *_: None).eval()
    output = tmp_path / "policy.onnx"
    assert _write_graph("small-tracking", (env, actor, 3), "mjlab", output) == 0
    session = onnxruntime.InferenceSession(output)
    assert {p.name: p.shape for p in session.get_inputs()} == {"obs": [1, 24], "time_step": [1, 1]}
    names = [part.name for part in session.get_outputs()]
    assert names == ["actions", *FRAME]
    for step in (0, 1, 57, 100, 130):  # Beyond the last frame, that one.
        with torch.inference_mode():
            seen = env.get_observations()
            action = actor(seen)
            env.step(action)
        given = {"obs": seen["actor"][:1].numpy(), "time_step": np.full((1, 1), step, np.float32)}
        found: dict[str, Any] = dict(zip(names, session.run(None, given), strict=True))
        np.testing.assert_allclose(found["actions"], action[:1], atol=1e-5)
        frame = env.motion.frames_of(0)
        rows = (
            frame.qpos[:, env.motors.places], frame.qvel[:, env.motors.dofs], *frame.bodies
        )  # fmt: skip
        for name, values in zip(FRAME, rows, strict=True):
            np.testing.assert_array_equal(found[name], values[[min(step, 100)]])
    known = session.get_modelmeta().custom_metadata_map
    assert known["body_names"] == "right_upper,trunk,left_lower"
    assert (known["anchor_body_name"], known["command_names"]) == ("trunk", "motion")
    assert known["joint_names"] == "left_hip,left_knee,right_hip"
    assert known["observation_names"].startswith("command,motion_anchor_ori_b,base_ang_vel,joint_")
    assert [float(x) for x in known["joint_stiffness"].split(",")] == [20.0] * 3
    assert [float(x) for x in known["default_joint_pos"].split(",")] == env.home.tolist()
    with pytest.raises(SystemExit, match="has mjlab's form: export it without --format mjlab"):
        run_policy().Robot(output)


def test_mjlabs_form_is_that_of_one_clip(tmp_path: Path) -> None:
    env = build(tmp_path, seconds=(1.0, 2.0), num_envs=2)
    actor = policy_of(env, replace(TrainConfig().agent, actor=AGENT.actor), lambda *_: None)
    with pytest.raises(UserError, match="choose one of clip_1, clip_2 by --clip"):
        _write_graph("small-tracking", (env, actor, 3), "mjlab", tmp_path / "policy.onnx")
    assert not (tmp_path / "policy.onnx").exists()
