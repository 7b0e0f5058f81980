"""What a tracking task rewards and ends, beside an oracle, on both engines."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from mjfleet.env import EnvShard
from mjfleet.errors import UserError
from mjfleet.parts.motion.clips import read_clip
from mjfleet.parts.motion.kinematics import forward
from mjfleet.registry import discover
from mjfleet.rl.evaluation.evaluator import Evaluator
from mjfleet.tracking.config import (
    EndsConfig,
    NoiseConfig,
    RandomConfig,
    StartConfig,
    TrackingConfig,
)
from mjfleet.tracking.scene import TOUCH, make_robot
from mjfleet.tracking.tracking_env import TrackingEnv

from ..env.test_env import build_task
from ..parts.motion.robots import XML, write
from ..sim.test_contract import ENGINES
from ..sim.test_contract import build as simulate

EXACT = StartConfig(
    position=(0, 0, 0), rotation=(0, 0, 0), joints=0, velocity=(0, 0, 0), spin=(0, 0, 0)
)
CONFIG = TrackingConfig(
    num_envs=4,
    decimation=2,
    anchor="trunk",
    bodies=("right_upper", "trunk", "left_lower"),
    end_bodies=("left_lower",),
    start=EXACT,
    noise=NoiseConfig(),
    random=RandomConfig(center_of_mass=(0, 0, 0), pushes=False, encoder_bias=0),
)


def build(
    folder: Path, engine: str = "native", seconds: Sequence[float] = (3.0,),
    shard: EnvShard | None = None, **fields: Any
) -> Any:  # fmt: skip
    """Build the task of a small robot, with clips of so many seconds."""
    (folder / "robot.xml").write_text(XML)
    kind = type("SmallEnv", (TrackingEnv,), {"model_file": str(folder / "robot.xml")})
    clips = tuple(write(folder, f"clip_{s:g}", seconds=s) for s in seconds)
    cfg = replace(CONFIG, clips=clips, **fields)
    return kind(cfg, simulate(engine, kind.make_model(cfg), cfg.num_envs), 1, shard)


def values(env: Any) -> dict[str, torch.Tensor]:
    """Tracking terms of the current state."""
    env.sim.forward()
    env.after_physics()
    return {name: term for name, term in env.rewards().items() if name in env.squares}


@pytest.mark.parametrize("engine", ENGINES)
def test_in_the_reference_each_term_is_whole_and_nothing_fails(engine: str, tmp_path: Path) -> None:
    env = build(tmp_path, engine)
    for name, term in values(env).items():
        torch.testing.assert_close(term, torch.ones_like(term), rtol=0, atol=1e-5, msg=name)
    assert not env.terminated().any()
    rows = env.rewards()
    assert all(rows[name].abs().max() == 0 for name in ("action_rate", "touch"))


@pytest.mark.parametrize("engine", ENGINES)
def test_relative_terms_follow_a_robot_that_is_elsewhere_and_global_ones_do_not(
    engine: str, tmp_path: Path
) -> None:
    env = build(tmp_path, engine)
    qpos = env.motion.now().qpos.double()
    turn, yaw = np.array([np.cos(0.4), 0, 0, np.sin(0.4)]), 0.8
    for row in qpos:
        x, y = row[:2].tolist()
        row[0] = np.cos(yaw) * x - np.sin(yaw) * y + 5.0
        row[1] = np.sin(yaw) * x + np.cos(yaw) * y - 0.7
        w, a, b, c = row[3:7].tolist()
        row[3:7] = torch.tensor([turn[0] * w - turn[3] * c, turn[0] * a - turn[3] * b,
                                 turn[0] * b + turn[3] * a, turn[0] * c + turn[3] * w])  # fmt: skip
    env.sim.qpos[:] = qpos.to(env.sim.qpos)
    found = values(env)
    for name in ("body_position", "body_rotation"):
        torch.testing.assert_close(found[name], torch.ones_like(found[name]), atol=1e-4, rtol=0)
    assert (found["anchor_position"] < 1e-5).all()
    assert (found["anchor_rotation"] < 0.05).all()
    assert (found["body_velocity"] < 0.99).all()
    assert not env.terminated().any()


def matrices(quaternions: np.ndarray) -> np.ndarray:
    w, x, y, z = np.moveaxis(quaternions.astype(float), -1, 0)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.moveaxis(np.array(rows), (0, 1), (-2, -1))


def angles(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    trace = np.einsum("...ij,...ij->...", one, other)
    return np.arccos(np.clip((trace - 1) / 2, -1, 1))


def oracle(env: Any) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Tracking terms and failures from matrices, as they are published."""
    robot, wanted = (
        [part.numpy() for part in one] for one in (env.robot(), env.motion.now().bodies)
    )
    (p, q, v, w), (p_ref, q_ref, v_ref, w_ref) = robot, wanted
    r, r_ref, a = matrices(q), matrices(q_ref), env.anchor
    delta = r[:, a] @ np.swapaxes(r_ref[:, a], 1, 2)
    yaw = np.arctan2(delta[:, 1, 0], delta[:, 0, 0])
    zero, one = 0 * yaw, 0 * yaw + 1
    turn = np.array([[np.cos(yaw), -np.sin(yaw), zero], [np.sin(yaw), np.cos(yaw), zero],
                     [zero, zero, one]]).transpose(2, 0, 1)  # fmt: skip
    place = np.concatenate((p[:, a, :2], p_ref[:, a, 2:]), axis=1)
    moved = place[:, None] + np.einsum("nij,nbj->nbi", turn, p_ref - p_ref[:, a : a + 1])
    squares = {
        "anchor_position": ((p_ref - p)[:, a] ** 2).sum(axis=1),
        "anchor_rotation": angles(r_ref[:, a], r[:, a]) ** 2,
        "body_position": ((moved - p) ** 2).sum(axis=2).mean(axis=1),
        "body_rotation": (angles(turn[:, None] @ r_ref, r) ** 2).mean(axis=1),
        "body_velocity": ((v_ref - v) ** 2).sum(axis=2).mean(axis=1),
        "body_spin": ((w_ref - w) ** 2).sum(axis=2).mean(axis=1),
    }
    found = {k: np.exp(-s / getattr(env.cfg.widths, k) ** 2) for k, s in squares.items()}
    ends = env.cfg.ends
    failed = np.abs((p_ref - p)[:, a, 2]) > ends.anchor_height
    failed |= np.abs(r_ref[:, a, 2, 2] - r[:, a, 2, 2]) > ends.gravity
    failed |= (np.abs((moved - p)[:, env.ends.numpy(), 2]) > ends.body_height).any(axis=1)
    return found, failed


def test_rewards_and_failures_are_those_of_an_oracle(tmp_path: Path) -> None:
    start = StartConfig(position=(0.2, 0.2, 0.25), rotation=(0.7, 0.7, 1.0), joints=0.5)
    env = build(tmp_path, num_envs=200, start=start)
    found = values(env)
    wanted, failed = oracle(env)
    for name, term in found.items():
        np.testing.assert_allclose(term, wanted[name], atol=2e-4, err_msg=name)
    assert 0.1 < failed.mean() < 0.9
    assert env.terminated().tolist() == failed.tolist()


@pytest.mark.parametrize("limit", ["anchor_height", "gravity", "body_height"])
def test_each_error_ends_an_episode(tmp_path: Path, limit: str) -> None:
    env = build(tmp_path)
    qpos = env.sim.qpos
    if limit == "anchor_height":
        qpos[0, 2] += 0.26
    elif limit == "gravity":
        qpos[0, 3:7] = torch.tensor([np.cos(1.2), np.sin(1.2), 0, 0])
    else:
        qpos[0, 7] += 3.0  # The left leg swings up.
    values(env)
    assert env.terminated().tolist() == [True, False, False, False]
    assert env.off[limit][0] > getattr(env.cfg.ends, limit)


def test_the_g1_has_the_published_sizes_and_may_estimate_its_state() -> None:
    env: Any = build_task("g1-tracking", "native", "cpu", 2)
    observed = {name: group.shape[1] for name, group in env.get_observations().items()}
    assert observed == {"actor": 154, "critic": 286}
    described = env.deployment()["observations"]["actor"]
    assert sum(part["size"] for part in described) == 154
    object.__setattr__(env, "cfg", replace(env.cfg, state_estimation=True))
    assert sum(part.values.shape[1] for part in env.seen(env.parts())) == 160
    motors = env.motors.reach / env.action_scale
    torch.testing.assert_close(motors, torch.full_like(motors, 4.0))


def test_the_smaller_torque_limit_of_motor_and_joint_counts(tmp_path: Path) -> None:
    knee = '<position joint="left_knee" '
    xml = XML.replace(knee, knee + 'forcerange="-10 10" ')
    for joint, most in (("left_hip", 5), ("left_knee", 15)):
        place = f'<joint name="{joint}" '
        xml = xml.replace(place, f'{place}actuatorfrcrange="-{most} {most}" ')
    (tmp_path / "robot.xml").write_text(xml)
    kind: Any = type("LimitedEnv", (TrackingEnv,), {"model_file": str(tmp_path / "robot.xml")})
    cfg = replace(CONFIG, clips=(write(tmp_path, "clip"),), action_scale=0.5)
    env = kind(cfg, simulate("native", kind.make_model(cfg), cfg.num_envs), 1)
    assert env.motors.reach.tolist() == [5 / 20, 10 / 20, 1.0]
    assert env.action_scale.tolist() == [0.125, 0.25, 0.5]


@pytest.mark.parametrize("name", ["walk", "turn", "sidestep", "squat"])
def test_the_clips_that_ship_keep_to_the_ground_and_to_the_joints_ranges(name: str) -> None:
    folder = discover({}).find("g1-tracking").folder
    model = mujoco.MjModel.from_xml_path(str(folder / "g1.xml"))
    clip = read_clip(folder / "clips" / f"{name}.npz", model)
    assert (clip.rate, clip.name) == (50.0, name)
    joints = clip.qpos[:, 7:].numpy()
    assert (joints > model.jnt_range[1:, 0] - 0.02).all()
    assert (joints < model.jnt_range[1:, 1] + 0.02).all()
    feet = [model.body(f"{side}_foot").id for side in ("left", "right")]
    heights = forward(model, clip.qpos, feet).positions[:, :, 2]
    assert heights.amin() > 0.02
    assert heights.amin(dim=1).max() < 0.05  # One of them is always on the ground.


@pytest.mark.parametrize("name", ["trot", "turn"])
def test_clips_of_the_go1_trot_on_the_ground(name: str) -> None:
    folder = discover({}).find("go1-tracking").folder
    model = mujoco.MjModel.from_xml_path(str(folder / "go1.xml"))
    clip, data = read_clip(folder / "clips" / f"{name}.npz", model), mujoco.MjData(model)
    feet = [model.geom(f"{leg}_foot").id for leg in ("FR", "FL", "RR", "RL")]
    radius = model.geom_size[feet[0], 0]
    heights = []
    for qpos in clip.qpos.numpy():
        data.qpos[:] = qpos
        mujoco.mj_kinematics(model, data)
        heights.append(data.geom_xpos[feet, 2] - radius)
    lowest = np.array(heights)
    assert lowest.min() > -0.03  # A foot presses into the ground as it lands.
    assert lowest.min(axis=1).max() < 0.03
    first, second = lowest[100:200, [0, 3]].mean(axis=1), lowest[100:200, [1, 2]].mean(axis=1)
    assert np.corrcoef(first, second)[0, 1] < -0.5  # Diagonal legs take turns.


def test_policy_and_motors_measure_joints_by_the_same_encoders(tmp_path: Path) -> None:
    env = build(tmp_path, random=replace(CONFIG.random, encoder_bias=0.1))
    assert 0 < env.bias.abs().max() <= 0.1
    assert env.bias.unique().numel() > 3
    env.amplitudes.zero_()
    start = 0
    for part in env.seen(env.parts()):
        size = part.values.shape[1]
        found = env.observe()["actor"][:, start : start + size] - part.values
        bias = env.bias if part.name == "joint_positions" else torch.zeros_like(found)
        torch.testing.assert_close(found, bias)
        start += size
    env.apply(torch.zeros(4, 3))
    torch.testing.assert_close(env.sim.ctrl.float(), env.home - env.bias)


def test_an_evaluation_has_no_noise_and_sums_every_metric_by_clip(tmp_path: Path) -> None:
    still = {"start": StartConfig(), "random": replace(CONFIG.random, pushes=True)}
    env = build(tmp_path, seconds=(1.0, 2.0), shard=EnvShard(0, 4, 4), **still)
    torch.testing.assert_close(env.sim.qpos.float(), env.motion.now().qpos, rtol=0, atol=1e-6)
    first = env.get_observations()["actor"]
    assert torch.equal(first[0], first[1])
    evaluator = Evaluator(env, 1)

    class Still:
        def __call__(self, observations: Any) -> torch.Tensor:
            return torch.zeros(4, 3)

        def reset(self, *_: Any, **__: Any) -> None: ...

        def get_hidden_state(self) -> None: ...

    sums = evaluator.evaluate(Still(), lambda: None)
    names = ("return", "length", "joint_error", "body_error", "anchor_error", "success")
    for clip in ("clip_1", "clip_2"):
        assert {f"clip/{clip}/{name}" for name in names} <= sums.keys()
        assert sums[f"clip/{clip}/return"][1] == 2
    for name in ("joint_error", "success"):
        parts = [sums[f"clip/clip_{n}/{name}"] for n in (1, 2)]
        assert sums[f"task/{name}"] == pytest.approx([sum(c) for c in zip(*parts, strict=True)])


def test_a_viewer_moves_the_robot_to_a_time_of_the_clip(tmp_path: Path) -> None:
    ends = EndsConfig(anchor_height=9.0, gravity=3.0, body_height=9.0)
    env = build(tmp_path, shard=EnvShard(0, 4, 4), ends=ends)
    env.command_override = True
    (seconds, low, high) = env.commands()["seconds"]
    assert (low, high) == (0.0, pytest.approx(3.0))
    seconds.fill_(2.0)
    env.step(torch.zeros(4, 3))
    assert env.motion.time.tolist() == pytest.approx([2.02] * 4)
    torch.testing.assert_close(
        env.sim.qpos[:, :3].float(), env.motion.now().qpos[:, :3], rtol=0, atol=0.02
    )
    env.step(torch.zeros(4, 3))  # The clip goes on from there.
    assert env.motion.time.tolist() == pytest.approx([2.04] * 4)


def test_robots_may_lack_names_and_a_home_and_touch_the_ground_anywhere(tmp_path: Path) -> None:
    (tmp_path / "robot.xml").write_text(
        XML.replace('name="trunk"', "").replace(
            "</mujoco>", '<keyframe><key name="home" ctrl="0 0 0"/></keyframe></mujoco>'
        )
    )
    for touching, count in (((), 1), (("left_lower", "left_lower"), 2), (("root",), 0)):
        cfg = replace(CONFIG, touching=touching)
        model = make_robot(tmp_path / "robot.xml", cfg)
        names = [model.sensor(i).name for i in range(model.nsensor)]
        assert len([name for name in names if name.startswith(TOUCH)]) == count


@pytest.mark.parametrize("engine", ENGINES)
def test_bodies_that_press_on_each_other_cost_if_they_may_collide(
    engine: str, tmp_path: Path
) -> None:
    """A spring turns the right leg, which is longer here, against the left one."""
    joint = '"right_hip" axis="1 0 0"'
    longer = f'{joint} stiffness="300" springref="90"/><geom size="0.02" pos="0 0 -0.42"'
    (tmp_path / "robot.xml").write_text(XML.replace(joint, longer))
    kind = type("PressedEnv", (TrackingEnv,), {"model_file": str(tmp_path / "robot.xml")})
    clips = (write(tmp_path, "clip", seconds=3.0),)
    for colliding, cost in ((("left_upper", "right_upper"), 1.0), ((), 0.0)):
        cfg = replace(CONFIG, clips=clips, self_collision=colliding)
        env: Any = kind(cfg, simulate(engine, kind.make_model(cfg), cfg.num_envs), 1)
        costs: list[float] = []
        for _ in range(10):
            env.step(torch.zeros(4, 3))
            costs.append(env.rewards()["self_collision"].max().item())
        assert max(costs) == cost


def test_wrong_bodies_are_refused(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"anchor": "left_upper"}, "--env.bodies must name the anchor"),
        ({"end_bodies": ("left_upper",)}, "and all of --env.end-bodies"),
        ({"bodies": ("trunk", "left_lower", "tail")}, "the model has no body 'tail'"),
        ({"touching": ("tail",)}, "--env.touching: the model has no body 'tail'"),
        ({"self_collision": ("tail",)}, "--env.self-collision: the robot has no body 'tail'"),
        ({"self_collision": ("world",)}, "--env.self-collision: the robot has no body 'world'"),
    ]
    for fields, message in wrong:
        with pytest.raises(UserError, match=message):
            build(tmp_path, **fields)
