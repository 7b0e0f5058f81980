"""What is wrong in a legged robot's class is named, and what a fall costs."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from mjfleet.errors import UserError
from mjfleet.legged import mirror
from mjfleet.legged.config import RoughVelocityConfig, VelocityConfig
from mjfleet.legged.rough_env import RoughVelocityEnv
from mjfleet.legged.velocity_env import Part, VelocityEnv
from mjfleet.sim import make_simulation

from ..conftest import REPOSITORY


class Robot(VelocityEnv):
    """The Go2, by its path."""

    model_file = str(REPOSITORY / "tasks/go2/go2.xml")


class FlatPart(Robot):
    """Observes a number in the place of a row."""

    def truth_parts(self) -> list[Part]:
        return [Part("height", lambda: self.sim.qpos[:, 2], mirror.SAME)]


class WrongImage(Robot):
    """Observes three numbers with the image of one."""

    def truth_parts(self) -> list[Part]:
        return [Part("place", lambda: self.sim.qpos[:, :3], mirror.SAME)]


def build(env_class: type[VelocityEnv], **attributes: Any) -> VelocityEnv:
    """Two environments of a class with other attributes."""
    changed = type(env_class.__name__, (env_class,), {"__module__": __name__, **attributes})
    cfg = VelocityConfig(num_envs=2)
    return changed(cfg, make_simulation("native", changed.make_model(cfg), 2, num_threads=1), 1)


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"action_factors": {"hp": 0.5}}, ["Robot.action_factors", "'hp': 0.5", "FR_hip_joint"]),
        ({"action_factors": {"hip(": 0.5}}, ["Robot.action_factors", "'hip('", "FR_hip_joint"]),
        ({"action_factors": {"hip": 0}}, ["Robot.action_factors", "'hip': 0", "above 0"]),
        ({"action_factors": {"hip": -0.5}}, ["Robot.action_factors", "'hip': -0.5", "above 0"]),
        ({"pose_factors": {"hip": "much"}}, ["Robot.pose_factors", "'hip': 'much'"]),
        ({"pose_factors": {"hip": math.nan}}, ["Robot.pose_factors", "'hip': nan"]),
        ({"action_factors": [("hip", 0.5)]}, ["Robot.action_factors is [('hip', 0.5)]"]),
        ({"largest_tilt": "1"}, ["Robot.largest_tilt is '1'", "a number"]),
        ({"base": None}, ["base is None", "a body"]),
        ({"model_file": None}, ["Robot.model_file is None", "a file"]),
        ({"largest_tilt": 70}, ["Robot.largest_tilt is 70", "pi rad"]),
    ],
)
def test_a_wrong_attribute_is_named(attributes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        build(Robot, **attributes)
    for word in words:
        assert word in str(error.value)


def test_factors_belong_to_the_joints_that_match() -> None:
    env = build(Robot, action_factors={"hip": 0.5, "^FR_hip": 0.25})
    assert (env.action_scale / env.cfg.action_scale).tolist() == [0.25, 1, 1] + [0.5, 1, 1] * 3


def test_factors_of_one_side_have_no_mirror_image() -> None:
    actions = torch.zeros(1, 12)
    mirror.mirror(build(Robot, action_factors={"hip": 0.5}), None, actions)
    for attribute in ("action_factors", "pose_factors"):
        with pytest.raises(UserError) as error:
            mirror.mirror(build(Robot, **{attribute: {"FR_hip": 0.5}}), None, actions)
        said = f"Robot.{attribute} has 0.5 for FR_hip_joint, but 1 for its image, FL_hip_joint"
        assert said in str(error.value)


@pytest.mark.parametrize(
    ("env_class", "words"),
    [(FlatPart, ["'height'", "(2,)"]), (WrongImage, ["'place'", "(2, 3)", "(2, 1)"])],
)
def test_a_part_of_another_shape_is_named(env_class: type[VelocityEnv], words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        build(env_class)
    for word in words:
        assert word in str(error.value)


def test_ground_and_configuration_belong_together() -> None:
    class Rough(RoughVelocityEnv, Robot):
        pass

    with pytest.raises(UserError, match=r"Foal has flat ground.*RoughVelocityEnv, before Robot"):
        type("Foal", (Robot,), {}).make_model(RoughVelocityConfig())
    with pytest.raises(UserError, match="has a VelocityConfig; it must be a RoughVelocityConfig"):
        Rough.make_model(VelocityConfig())
    assert Rough.make_model(RoughVelocityConfig(levels=1, columns=1)).nu == 12


@pytest.mark.parametrize("speed", [150, 300])
def test_a_simulation_that_diverges_is_a_fall_and_costs_little(speed: float) -> None:
    env = build(Robot)
    env.reset()
    still = torch.zeros(2, env.num_actions)
    _, calm, _, _ = env.step(still)
    env.sim.qvel[1, 6:] = speed
    observations, rewards, dones, _ = env.step(still)
    assert dones.tolist() == [False, True]
    assert rewards[0] == pytest.approx(calm[0], abs=0.5)
    assert -100 < rewards[1] < rewards[0] - 1
    assert observations["actor"].abs().max() < 100
    assert observations["critic"].abs().max() < 100


def test_a_fall_costs_what_it_is_said_to_cost() -> None:
    env = build(Robot)
    env.reset()
    env.sim.qpos[1, 3:7] = torch.tensor((0.0, 1.0, 0.0, 0.0))
    env.cfg = replace(env.cfg, weights=replace(env.cfg.weights, fall=-50.0))
    _, _, dones, _ = env.step(torch.zeros(2, env.num_actions))
    assert dones.tolist() == [False, True]
    assert env.terms[env.reward_names.index("fall")].tolist() == [0, -50]
