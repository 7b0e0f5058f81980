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
from mjfleet.legged.velocity_env import VelocityEnv
from mjfleet.sim import make_simulation

from ..conftest import REPOSITORY


class Robot(VelocityEnv):
    """The Go2, by its path."""

    model_file = str(REPOSITORY / "tasks/go2/go2.xml")


def build(env_class: type[VelocityEnv], **attributes: Any) -> VelocityEnv:
    """Two environments of a class with other attributes."""
    changed = type(env_class.__name__, (env_class,), {"__module__": __name__, **attributes})
    cfg = VelocityConfig(num_envs=2)
    return changed(cfg, make_simulation("native", changed.make_model(cfg), 2, num_threads=1), 1)


def test_a_factor_of_no_joint_is_named() -> None:
    for factors, said in (({"hp": 0.5}, "'hp': 0.5"), ({"hip": math.nan}, "'hip': nan")):
        with pytest.raises(UserError, match=f"Robot.action_factors has {said}.*FR_hip_joint"):
            build(Robot, action_factors=factors)


def test_factors_belong_to_the_joints_that_match() -> None:
    env = build(Robot, action_factors={"hip": 0.5, "^FR_hip": 0.25})
    assert (env.action_scale / env.cfg.action_scale).tolist() == [0.25, 1, 1] + [0.5, 1, 1] * 3


def test_factors_of_one_side_have_no_mirror_image() -> None:
    actions = torch.zeros(1, 12)
    mirror.mirror(build(Robot, action_factors={"hip": 0.5}), None, actions)
    for attribute in ("action_factors", "pose_factors"):
        with pytest.raises(UserError) as error:
            mirror.mirror(build(Robot, **{attribute: {"FR_hip": 0.5}}), None, actions)
        assert f"Robot.{attribute} differs between left and right: [0.5" in str(error.value)


def test_ground_and_configuration_belong_together() -> None:
    class Rough(RoughVelocityEnv, Robot):
        pass

    with pytest.raises(UserError, match=r"Foal has flat ground.*RoughVelocityEnv, before Robot"):
        type("Foal", (Robot,), {}).make_model(RoughVelocityConfig())
    with pytest.raises(UserError, match="has a VelocityConfig, not a RoughVelocityConfig"):
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
