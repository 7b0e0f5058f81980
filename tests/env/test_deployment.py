"""What an exported policy tells a robot."""

from collections.abc import Callable, Sequence
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from mjfleet.config import EnvConfig
from mjfleet.errors import UserError
from mjfleet.sim import make_simulation
from mjfleet.tools.export.robot_metadata import describe

from .test_env import OWN, PlainEnv, build_task

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


class LegEnv(PlainEnv):
    deployed: Any = None

    def observe(self) -> dict[str, torch.Tensor]:
        return super().observe() | {"speeds": self.sim.qvel}

    def deployment(self) -> dict[str, Any]:
        return self.deployed


class PushedEnv(LegEnv):
    """What forces move: its model needs no actuator."""

    def count_actions(self) -> int:
        return 2


def build(text: str, kind: type[LegEnv] = LegEnv) -> LegEnv:
    model = mujoco.MjModel.from_xml_string(text)
    cfg = EnvConfig(num_envs=1, decimation=5)
    env = kind(cfg, make_simulation("native", model, 1), seed=1)
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


TORQUES: dict[str, Callable[[float, float, float, float, float, float], float]] = {
    "position": lambda kp, kv, gear, control, q, v: gear * (kp * (control - gear * q)
                                                            - kv * gear * v),
    "velocity": lambda _, kv, gear, control, q, v: gear * kv * (control - gear * v),
    "damper": lambda _, kv, gear, control, q, v: -gear * kv * control * gear * v,
    "motor": lambda _, kv, gear, control, q, v: gear * control,
}  # fmt: skip
"""The torque of an actuator by its kind, as docs/deploy.md gives it."""
GAINS = {"position": 'kp="20" kv="3"', "velocity": 'kv="3"', "damper": 'kv="3" ctrlrange="0 1"'}


@pytest.mark.parametrize("kind", TORQUES)
def test_the_torque_follows_from_what_is_exported(kind: str) -> None:
    actuator = f'<{kind} name="one" joint="knee" gear="-2" {GAINS.get(kind, "")}/>'
    start, end = MODEL.index("<actuator>"), MODEL.index("</actuator>")
    text = f"{MODEL[:start]}<actuator>{actuator}{MODEL[end:]}".replace("actuatorfrcrange", "user")
    env = build(text)
    known = describe(env, ("actor",))
    assert known["actuator_kinds"] == [kind]
    q, v, control = 0.3, 0.5, 0.7
    data = mujoco.MjData(env.sim.model)
    data.qpos[-1], data.qvel[-1], data.ctrl[0] = q, v, control
    mujoco.mj_forward(env.sim.model, data)
    kp, kv, gear = (known[name][0] or 0.0 for name in ("kp", "kv", "gear"))
    assert data.qfrc_actuator[-1] == pytest.approx(TORQUES[kind](kp, kv, gear, control, q, v))


TRANSMISSIONS = """
<mujoco>
  <worldbody>
    <body name="base" gravcomp="1">
      <freejoint name="root"/>
      <geom size="0.1"/>
      <site name="jet"/>
      <body pos="0 0 1">
        <joint name="shoulder" type="ball"/>
        <geom size="0.1"/>
        <site name="hand"/>
      </body>
      <body pos="0 1 0">
        <joint name="wheel"/>
        <geom size="0.1"/>
        <site name="crank" pos="0.1 0 0"/>
      </body>
      <body pos="1 0 0">
        <joint name="rail" type="slide"/>
        <geom size="0.1"/>
        <site name="slider" pos="-0.5 1 0" zaxis="1 0 0"/>
      </body>
    </body>
  </worldbody>
  <tendon>
    <fixed name="cable" actuatorfrclimited="true" actuatorfrcrange="-5 9">
      <joint joint="rail" coef="2"/>
    </fixed>
  </tendon>
  <actuator>
    <motor name="hinge" joint="wheel" gear="2 7" ctrlrange="-1 1"/>
    <motor name="slide" jointinparent="rail" gear="-2" ctrlrange="-1 3"/>
    <motor name="ball" joint="shoulder" gear="0 2 0" ctrlrange="-1 1"/>
    <motor name="ball in parent" jointinparent="shoulder" gear="1 2 3 4" forcerange="-1 1"/>
    <motor name="free" joint="root" gear="1 2 3 4 5 6" ctrlrange="-1 1"/>
    <motor name="tendon" tendon="cable" gear="3" ctrlrange="-2 2"/>
    <motor name="site" site="jet" gear="0 0 1 0 0 0.1" ctrlrange="-1 1"/>
    <position name="site to site" site="hand" refsite="jet" gear="0 1 0 0 0 0" kp="5"
        forcerange="-1 1"/>
    <general name="slider-crank" cranksite="crank" slidersite="slider" cranklength="0.6" gear="4"
        forcerange="-1 2"/>
    <adhesion name="body" body="base" ctrlrange="0 1" gain="2"/>
    <orientation name="orientation" joint="shoulder" kp="3" ctrlrange="-1 1"/>
    <pid name="pid" joint="wheel" gear="6" kp="3" posrange="-1 1"/>
  </actuator>
</mujoco>
"""
KNOWN = {
    "hinge": ("wheel", 2.0, [-2.0, 2.0]),
    "slide": ("rail", -2.0, [-6.0, 2.0]),
    "ball": (None, [0.0, 2.0, 0.0], None),
    "ball in parent": (None, [1.0, 2.0, 3.0], None),
    "free": (None, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], None),
    "tendon": (None, 3.0, [-5.0, 6.0]),
    "site": (None, [0.0, 0.0, 1.0, 0.0, 0.0, 0.1], None),
    "site to site": (None, [0.0, 1.0, 0.0, 0.0, 0.0, 0.0], None),
    "slider-crank": (None, 4.0, [-4.0, 8.0]),
    "body": (None, None, None),
    "orientation": (None, None, None),
    "pid": ("wheel", 6.0, None),
}
"""Joint, gear and limits of each."""


def test_each_transmission_has_the_gear_that_it_uses_or_none() -> None:
    env = build(TRANSMISSIONS)
    known = describe(env, ("actor",))
    entries = (known[name] for name in ("joint_names", "gear", "torque_limits"))
    found = dict(zip(known["actuator_names"], zip(*entries, strict=True), strict=True))
    assert found == KNOWN
    # Two actuators have several controls: a vector of rotation, a position and a speed.
    ranges = [[-1, 1], [-1, 3], [-1, 1], None, [-1, 1], [-2, 2], [-1, 1], None, None, [0, 1]]
    assert known["control_ranges"] == [*ranges, *3 * [[-1, 1]], [-1, 1], None]


def test_a_model_without_actuators_has_empty_lists() -> None:
    start, end = MODEL.index("<actuator>"), MODEL.index("<keyframe>")
    known = describe(build(MODEL[:start] + MODEL[end:], PushedEnv), ("actor",))
    assert (known["action_size"], known["actuator_names"], known["kp"]) == (2, [], [])
    assert known["control_ranges"] == known["default_pose"] == []


@pytest.mark.parametrize(
    ("name", "dofs"),
    [
        ("free", range(6)),
        ("site", range(6)),
        ("ball", range(6, 9)),
        ("hinge", [9]),
        ("slide", [10]),
    ],
)
def test_mujoco_applies_the_gear_that_is_exported(name: str, dofs: Sequence[int]) -> None:
    model = mujoco.MjModel.from_xml_string(TRANSMISSIONS)
    data = mujoco.MjData(model)
    data.ctrl[model.actuator(name).id] = 1
    mujoco.mj_forward(model, data)
    expected = np.zeros(model.nv)
    expected[dofs] = KNOWN[name][1]
    np.testing.assert_allclose(data.qfrc_actuator, expected, atol=1e-12)


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
    described = describe(build_task(name, "native", "cpu", num_envs=1), ("actor",))
    assert len([*described["observations"], *described.get("images", [])]) == 1
    for group in described["observations"]:
        assert sum(part["size"] for part in group["parts"]) == group["size"]
