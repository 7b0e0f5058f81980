"""What is wrong in a legged robot's class is named, and what a fall costs."""

from typing import Any

import pytest
import torch

from mjfleet.errors import UserError
from mjfleet.legged import mirror
from mjfleet.legged.biped_env import BipedEnv
from mjfleet.legged.config import (
    BipedWeights,
    RoughVelocityConfig,
    TerrainSharesConfig,
    VelocityConfig,
    WeightsConfig,
    velocity_tasks,
)
from mjfleet.legged.rough_env import RoughVelocityEnv
from mjfleet.legged.velocity_env import VelocityEnv
from mjfleet.sim import make_simulation

from ..conftest import REPOSITORY


class Robot(VelocityEnv):
    """The Go2, by its path."""

    model_file = str(REPOSITORY / "tasks/go2/go2.xml")


class Rough(RoughVelocityEnv, Robot):
    pass


def build(
    env_class: type[VelocityEnv], cfg: VelocityConfig | None = None, **attributes: Any
) -> VelocityEnv:
    """Two environments of a class with other attributes, or those of `cfg`."""
    changed = type(env_class.__name__, (env_class,), {"__module__": __name__, **attributes})
    cfg = cfg or VelocityConfig(num_envs=2)
    model, count = changed.make_model(cfg), cfg.num_envs
    return changed(cfg, make_simulation("native", model, count, num_threads=1), 1)


class Humanoid(BipedEnv):
    """The G1, by its path."""

    model_file = str(REPOSITORY / "tasks/g1/g1.xml")
    base = "pelvis"


def test_two_legs_earn_steps_and_fall_where_anything_but_feet_touches() -> None:
    cfg = VelocityConfig(num_envs=6, decimation=2, weights=BipedWeights(swing=2.0))
    env: Any = build(Humanoid, cfg)
    assert env.reward_weights()["swing"] == pytest.approx(2.0 * env.step_dt)
    # One foot swings, both stand, both fly, too short, too long, and where it is to stand.
    touching = ((0, 1), (1, 1), (0, 0), (1, 0), (1, 0), (1, 0))
    seconds = ((0.2, 0), (0, 0), (0.2, 0.2), (0, 0.1), (0, 0.41), (0, 0.2))
    env.touching[:], env.air_time[:] = (
        torch.tensor(touching, dtype=torch.bool),
        torch.tensor(seconds),
    )
    env.stands[:] = torch.arange(6) == 5
    assert env.swings().tolist() == [1, 0, 0, 0, 0, 0]

    env.reset()
    env.sim.qpos[1, 3:7] = torch.tensor((0.9, 0.0, 0.44, 0.0))  # Tilted by 52 degrees.
    env.sim.qpos[2, 2] -= 0.5  # To its shins in the ground.
    env.step(torch.zeros(6, env.num_actions))
    assert env.failed.tolist() == [False, True, True, False, False, False]


def test_a_factor_of_no_joint_is_named() -> None:
    with pytest.raises(UserError, match="action_factors: 'hp' matches no joint of FR_hip_joint"):
        build(Robot, action_factors={"hp": 0.5})
    with pytest.raises(UserError, match=r"action_factors: '\[hip' is no regular exp"):
        build(Robot, action_factors={"[hip": 0.5})


def test_a_robot_without_feet_is_named() -> None:
    with pytest.raises(UserError, match=r"Robot\.feet is empty"):
        build(Robot, feet=())


def test_factors_belong_to_the_joints_that_match() -> None:
    env = build(Robot, action_factors={"hip": 0.5, "^FR_hip": 0.25})
    assert (env.action_scale / env.cfg.action_scale).tolist() == [0.25, 1, 1] + [0.5, 1, 1] * 3


def test_actions_are_bounded_by_the_joints_and_by_what_is_of_use() -> None:
    env = build(Robot, cfg=VelocityConfig(num_envs=2, action_scale=0.5, largest_action=2.4))
    model, limits = env.sim.model, env.action_limit
    assert isinstance(limits, torch.Tensor)
    for limit, (low, high), home in zip(limits, model.jnt_range[1:], env.pose, strict=True):
        reach = max(high - float(home), float(home) - low) / 0.5
        assert float(limit) == pytest.approx(min(reach, 2.4), rel=1e-5)
    assert len(set(limits.tolist())) > 1


def test_factors_of_one_side_have_no_mirror_image() -> None:
    actions = torch.zeros(1, 12)
    mirror.mirror(build(Robot, action_factors={"hip": 0.5}), None, actions)
    for attribute in ("action_factors", "pose_factors"):
        changed: Any = {attribute: {"FR_hip": 0.5}}
        with pytest.raises(UserError) as error:
            mirror.mirror(build(Robot, **changed), None, actions)
        assert f"Robot.{attribute} differs between left and right: [0.5" in str(error.value)


def test_ground_and_configuration_belong_together() -> None:
    with pytest.raises(UserError, match=r"Foal has flat ground.*RoughVelocityEnv, before Robot"):
        type("Foal", (Robot,), {}).make_model(RoughVelocityConfig())
    with pytest.raises(UserError, match="has a VelocityConfig, not a RoughVelocityConfig"):
        Rough.make_model(VelocityConfig())
    assert Rough.make_model(RoughVelocityConfig(levels=1, columns=1)).nu == 12


def test_levels_are_logged_for_each_kind_of_ground() -> None:
    shares = TerrainSharesConfig(gaps=2.0, flat=1.0)
    cfg = RoughVelocityConfig(num_envs=5, columns=3, start_levels=8, terrain_shares=shares)
    env: Any = build(Rough, cfg)
    assert env.levels.now.tolist() == [0, 0, 0, 1, 1]  # On flat, gaps, gaps, flat, gaps.
    env.levels.now[:2] = torch.tensor((4, 6))
    env.step(torch.zeros(5, env.num_actions))
    sums = env.take_statistics()
    assert sums["task/terrain_level"] == (4 + 6 + 0 + 1 + 1, 5)
    assert sums["task/terrain_level/flat"] == (4 + 1, 2)
    assert sums["task/terrain_level/gaps"] == (6 + 0 + 1, 3)
    assert not {"task/terrain_level/rough", "task/terrain_level/ring"} & sums.keys()


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
    weights = {"fall": -50.0, "linear": 3.0, "pose": 0.0}
    env = build(Robot, cfg=VelocityConfig(num_envs=2, weights=WeightsConfig(**weights)))
    env.sim.qpos[1, 3:7] = torch.tensor((0.0, 1.0, 0.0, 0.0))
    _, _, dones, _ = env.step(torch.zeros(2, env.num_actions))
    assert dones.tolist() == [False, True]
    terms = dict(zip(env.reward_names, env.terms.tolist(), strict=True))
    assert terms["fall"] == [0, -50]
    assert 0 < max(terms["linear"]) <= 3 * env.step_dt  # Its weight is per second.
    assert terms["pose"] == [0, 0]
    assert env.reward_weights()["linear"] == pytest.approx(3 * env.step_dt)


def test_a_term_of_ones_own_counts_per_second_and_one_without_weight_is_not_computed() -> None:
    def reward_terms(self: Robot) -> dict[str, Any]:
        terms = {**VelocityEnv.reward_terms(self), "mine": torch.full((2,), 5.0)}
        return terms | {"slip": lambda: 1 / 0}

    cfg = VelocityConfig(num_envs=2, weights=WeightsConfig(slip=0.0))
    env = build(Robot, cfg=cfg, reward_terms=reward_terms)
    env.step(torch.zeros(2, env.num_actions))
    mine = env.terms[env.reward_names.index("mine")]
    assert mine.tolist() == pytest.approx([5 * env.step_dt] * 2)
    assert env.terms[env.reward_names.index("slip")].tolist() == [0, 0]


def test_rough_ground_does_not_lose_the_numbers_of_a_class_of_ones_own() -> None:
    class Own(VelocityConfig):
        pass

    tasks = velocity_tasks("foal", "A foal", 12, Own(), RoughVelocityConfig())
    assert type(tasks["foal-velocity-flat"].env) is Own
    with pytest.raises(UserError, match=r"^velocity_tasks\('foal'\): Own needs `rough`, too.$"):
        velocity_tasks("foal", "A foal", 12, Own())
