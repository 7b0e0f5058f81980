"""The Franka Panda: its model against published figures, and what its tasks reward and command."""

import math
import sys
from dataclasses import replace
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from mjfleet.errors import UserError

from ..conftest import REPOSITORY
from ..env.test_env import BUNDLED, build_own

FOLDER = REPOSITORY / "tasks/panda"
TORQUES = np.array(4 * [87.0] + 3 * [12.0])


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(FOLDER / "lift.xml"))


def published_pose(angles: np.ndarray) -> np.ndarray:
    """Return the tool centre point's frame, from the lengths and angles (modified DH parameters)
    of Franka's documentation."""
    quarter = math.pi / 2
    rows = [
        (0, 0.333, 0), (0, 0, -quarter), (0, 0.316, quarter), (0.0825, 0, quarter),
        (-0.0825, 0.384, -quarter), (0, 0, quarter), (0.088, 0, quarter),
        (0, 0.107 + 0.1034, 0),
    ]  # fmt: skip
    frame = np.eye(4)
    for (a, d, alpha), theta in zip(rows, (*angles, -math.pi / 4), strict=True):
        (sa, ca), (st, ct) = ((math.sin(x), math.cos(x)) for x in (alpha, theta))
        frame = frame @ np.array(
            [[ct, -st, 0, a], [st * ca, ct * ca, -sa, -d * sa],
             [st * sa, ct * sa, ca, d * ca], [0, 0, 0, 1]]
        )  # fmt: skip
    return frame


def random_angles(model: mujoco.MjModel, count: int) -> np.ndarray:
    low, high = model.jnt_range[:7].T
    return np.random.default_rng(0).uniform(low, high, (count, 7))


def test_the_hand_is_where_the_published_lengths_put_it(model: mujoco.MjModel) -> None:
    data = mujoco.MjData(model)
    for angles in random_angles(model, 20):
        data.qpos[:7] = angles
        mujoco.mj_kinematics(model, data)
        frame = published_pose(angles)
        assert data.site("tcp").xpos == pytest.approx(frame[:3, 3], abs=1e-9)
        assert data.site("tcp").xmat.reshape(3, 3) == pytest.approx(frame[:3, :3], abs=1e-9)


def test_masses_and_limits_are_the_published_ones(model: mujoco.MjModel) -> None:
    assert model.body("link0").subtreemass == pytest.approx(17.4519)
    low = [-2.8973, -1.7628, -2.8973, -3.0718, -2.8973, -0.0175, -2.8973, 0, 0]
    high = [2.8973, 1.7628, 2.8973, -0.0698, 2.8973, 3.7525, 2.8973, 0.04, 0.04]
    assert model.jnt_range[:9] == pytest.approx(np.array((low, high)).T)
    assert model.jnt_actfrcrange[:7] == pytest.approx(np.array((-TORQUES, TORQUES)).T)
    assert model.actuator_trnid[:, 0].tolist() == list(range(8))
    assert model.actuator_ctrlrange == pytest.approx(model.jnt_range[:8])


def test_motors_bear_the_arms_weight_within_their_limits(model: mujoco.MjModel) -> None:
    data = mujoco.MjData(model)
    for angles in random_angles(model, 5):
        data.qpos[:7] = data.ctrl[:7] = angles.clip(-1.5, 2.0)
        data.qvel[:] = 0.0
        mujoco.mj_forward(model, data)
        assert data.qacc[:7] == pytest.approx(0, abs=1e-6)
        assert data.qfrc_actuator[:7] == pytest.approx(data.qfrc_bias[:7])
        data.ctrl[:7] += 3.0
        data.ctrl[:] = data.ctrl.clip(*model.actuator_ctrlrange.T)
        mujoco.mj_forward(model, data)
        assert (np.abs(data.qfrc_actuator[:7]) <= TORQUES + 1e-9).all()
        assert (np.abs(data.qfrc_actuator[:4]) > 86.9).any()


def test_the_arm_touches_the_table_and_the_fingers_the_cube(model: mujoco.MjModel) -> None:
    data, seen = mujoco.MjData(model), set()
    for angles in random_angles(model, 400):
        data.qpos[:7] = angles
        mujoco.mj_forward(model, data)
        seen |= {frozenset(model.geom(i).name for i in pair) for pair in data.contact.geom}
    arm = {"forearm", "forearm_side", "wrist", "flange", "hand", "left_pad", "right_pad"}
    on_table = {frozenset((part, "table")) for part in {"cube", *arm}}
    assert (
        on_table
        <= seen
        <= on_table | {frozenset((part, "cube")) for part in ("hand", "left_pad", "right_pad")}
    )
    data.qpos[:7], data.qpos[9:12] = model.key("home").qpos[:7], (0.5, 0, 0.2)
    data.qpos[7:9] = 0.0199
    mujoco.mj_forward(model, data)
    assert {model.geom(i).name for i in data.contact.geom.ravel()} == {
        "cube", "left_pad", "right_pad",
    }  # fmt: skip


def test_every_commanded_pose_is_reached_by_some_motion_which_is_rewarded() -> None:
    env: Any = build_own("panda-reach", 24, noise=0.0)
    steps = BUNDLED["panda-lift"].load("lift:damped_least_squares")
    p = env.cfg.pose
    for i, (low, high) in enumerate((p.forward, p.left, p.up, p.tilt, p.tilt, p.turn)):
        assert low <= env.poses[:, i].min() < 0 < env.poses[:, i].max() <= high
    rewards, before = [], env.command.clone()
    for _ in range(env.period - 1):
        assert torch.equal(env.command, before)
        error = torch.cat(env.errors(), dim=1).double()
        by = 0.2 * steps(env.jacobian(), error)
        rewards.append(env.step((by / env.stride).float())[1])
    way, turn = env.errors()
    assert (way.norm(dim=1) < 0.02).float().mean() > 0.9
    assert (turn.norm(dim=1) < 0.1).float().mean() > 0.9
    assert (rewards[-1] > rewards[0]).float().mean() > 0.95
    env.step(torch.zeros(24, 7))
    assert (env.command != before).any(dim=1).all()


def test_commands_are_the_few_poses_within_narrow_ranges_and_none_is_one_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind = BUNDLED["panda-reach"].load("reach:ReachEnv")
    monkeypatch.setattr(sys.modules[kind.__module__], "ROUNDS", 5)
    usual: Any = BUNDLED["panda-reach"].task.env
    narrow, far = replace(usual.pose, forward=(0.0, 0.03)), replace(usual.pose, up=(0.9, 1.0))
    env: Any = build_own("panda-reach", 24, pose=narrow)
    assert 0 < len(env.poses) < 2048
    assert ((env.command[:, 0] >= 0.0) & (env.command[:, 0] <= 0.03)).all()
    with pytest.raises(UserError, match="has a hand within the ranges"):
        build_own("panda-reach", 1, pose=far)


def test_a_cube_is_gripped_and_carried_to_its_goal_which_is_rewarded() -> None:
    env: Any = build_own("panda-lift", 16, noise=0.0)
    cfg, rewards = env.cfg, list[float]()
    assert (env.cube[:, 0] - 0.5 <= cfg.cube.forward[1]).all()
    assert (env.cube[:, 1].abs() <= cfg.cube.left[1]).all()
    assert env.cube[:, 1].std() > 0.05
    assert (env.command.abs() <= torch.tensor((0.1, 0.2, 0.15))).all()
    above = torch.tensor((0.0, 0.0, 0.1))
    for step in range(env.max_episode_length - 1):
        way = env.cube - env.hand
        if step < 60:
            way += above
        if step >= 150:
            way = env.middle + env.command - env.cube
        angle = torch.atan2(
            (env.cube_x * env.axes[:, 1]).sum(1), (env.cube_x * env.axes[:, 0]).sum(1)
        )
        angle = torch.remainder(angle + math.pi / 4, math.pi / 2) - math.pi / 4
        action = torch.zeros(env.num_envs, 5)
        action[:, :3] = 12 * way
        action[:, 3] = -5 * angle if step < 110 else 0.0
        action[:, 4] = 1.0 if step < 110 else -1.0
        rewards.append(env.step(action)[1].mean().item())
    assert (env.goal_distance() < 0.02).all()
    assert rewards[10] < rewards[100] < rewards[149] < rewards[180] < rewards[-1]
