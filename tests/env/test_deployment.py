"""What an exported policy tells a robot."""

from typing import Any

import mujoco
import pytest
import torch

from mjfleet.config import EnvConfig
from mjfleet.env import Env
from mjfleet.errors import UserError
from mjfleet.sim import make_simulation
from mjfleet.tools.export.robot_metadata import describe

from .test_env import OWN, build_task

MODEL = """
<mujoco>
  <worldbody>
    <body>
      <freejoint/>
      <geom size="0.1"/>
      <body pos="0 0 1">
        <joint name="hip"/>
        <geom size="0.1"/>
        <body pos="0 0 1">
          <joint name="knee" actuatorfrcrange="-3 4"/>
          <geom size="0.1"/>
        </body>
      </body>
    </body>
  </worldbody>
  <tendon>
    <fixed name="both"><joint joint="hip" coef="1"/><joint joint="knee" coef="1"/></fixed>
  </tendon>
  <actuator>
    <motor name="lower" joint="knee" gear="10" ctrlrange="-1 0.2"/>
    <position name="upper" joint="hip" kp="20" kv="2" gear="-2" forcerange="-5 6"/>
    <motor name="pull" tendon="both"/>
  </actuator>
  <keyframe>
    <key name="other" qpos="0 0 0 1 0 0 0 0.1 0.2"/>
    <key name="home" qpos="0 0 0 1 0 0 0 0.3 0.4"/>
  </keyframe>
</mujoco>
"""


class LegEnv(Env[EnvConfig]):
    """A robot that observes its positions."""

    deployed: Any = None

    def reset_worlds(self, mask: torch.Tensor) -> None:
        pass

    def apply(self, action: torch.Tensor) -> None:
        self.sim.ctrl[:] = action

    def observe(self) -> dict[str, torch.Tensor]:
        return {"actor": self.sim.qpos, "critic": self.sim.qpos, "speeds": self.sim.qvel}

    def rewards(self) -> dict[str, torch.Tensor]:
        return {"none": torch.zeros(self.num_envs)}

    def deployment(self) -> dict[str, Any]:
        return self.deployed


def build(text: str) -> LegEnv:
    model = mujoco.MjModel.from_xml_string(text)
    cfg = EnvConfig(num_envs=1, decimation=5)
    env = LegEnv(cfg, make_simulation("native", model, 1), seed=1)
    env.deployed = {}
    return env


@pytest.fixture
def env() -> LegEnv:
    return build(MODEL)


def test_actuators_are_described_in_the_order_of_actions(env: LegEnv) -> None:
    known = describe(env, ("speeds", "actor"))
    assert known["actuator_names"] == ["lower", "upper", "pull"]
    assert known["joint_names"] == ["knee", "hip", None]
    assert known["default_pose"] == [0.4, 0.3, None]
    assert (known["kp"], known["kv"]) == ([None, 20, None], [None, 2, None])
    assert known["gear"] == [10, -2, 1]
    assert known["torque_limits"] == [[-3, 2], [-12, 10], None]
    assert known["control_ranges"] == [[-1, 0.2], None, None]
    assert known["control_rate"] == 100.0
    assert known["observations"] == [{"name": "speeds", "size": 8}, {"name": "actor", "size": 9}]
    assert (known["observation_size"], known["action_size"]) == (17, 3)


def test_what_the_task_says_is_added(env: LegEnv) -> None:
    parts = [{"name": "pairs", "size": 8, "history": 4, "parts": [{"name": "pair", "size": 2}]}]
    env.deployed = {"observations": {"speeds": parts}, "default_pose": (0, 1, 2), "scale": 0.5}
    known = describe(env, ("speeds", "actor"))
    assert known["observations"][0] == {"name": "speeds", "size": 8, "parts": parts}
    assert (known["default_pose"], known["scale"]) == ([0, 1, 2], 0.5)


@pytest.mark.parametrize(
    ("deployed", "message"),
    [
        (
            {"observations": {"actor": [{"name": "leg", "size": 1}]}},
            "add up to 1, but its size is 9",
        ),
        ({"observations": {"actr": []}}, "parts by group: actor, critic, speeds"),
        ({"pose": float("nan")}, "plain JSON data"),
    ],
)
def test_what_a_robot_could_not_use_is_refused(env: LegEnv, deployed: Any, message: str) -> None:
    env.deployed = deployed
    with pytest.raises(UserError, match=message):
        describe(env, ("actor",))


@pytest.mark.parametrize("name", OWN)
def test_bundled_tasks_name_all_that_a_policy_observes(name: str) -> None:
    (group,) = describe(build_task(name, "native", "cpu", num_envs=1), ("actor",))["observations"]
    assert sum(part["size"] for part in group["parts"]) == group["size"]
