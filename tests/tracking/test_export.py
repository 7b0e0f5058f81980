"""An exported policy follows its clips in plain MuJoCo, and one of another size is refused."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mjfleet.config import TrainConfig
from mjfleet.env import EnvShard
from mjfleet.rl.build_algorithm import policy_of
from mjfleet.tools.export.command import _write_graph
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
