"""The Go1's tasks: commands, robots that differ, falls, and ground that gets harder."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from mjfleet.env import Env, EnvShard

from ..env.test_env import BUNDLED, build_env

CALM: dict[str, Any] = {"push_speed": 0.0, "noise": 0.0}
"""No pushes, no noise."""


def build(
    name: str,
    num_envs: int = 32,
    *,
    seed: int = 1,
    parts: dict[str, Any] | None = None,
    share: EnvShard | None = None,
    **own: Any,
) -> Env[Any]:
    """An environment with other numbers; `parts` are those of nested configurations."""
    cfg: Any = BUNDLED[name].task.env
    nested = {key: replace(getattr(cfg, key), **values) for key, values in (parts or {}).items()}
    return build_env(name, replace(cfg, num_envs=num_envs, **nested, **own), seed, share)


def run(env: Env[Any], seconds: float) -> list[torch.Tensor]:
    """Keep the standing pose; returns who was done in each step."""
    still = torch.zeros(env.num_envs, env.num_actions)
    return [env.step(still)[2] for _ in range(round(seconds / env.step_dt))]


@pytest.mark.parametrize("name", ["go1-velocity-flat", "go1-velocity-rough"])
def test_it_stands_by_its_gains_alone(name: str) -> None:
    low: dict[str, Any] = {"levels": 1} if "rough" in name else {}
    env = build(name, parts={"random": CALM}, **low)
    assert not torch.stack(run(env, 4.0)).any()
    assert env.sim.qvel.abs().max() < 0.2


def test_a_robot_on_its_back_or_belly_has_fallen() -> None:
    env = build("go1-velocity-flat", 3, parts={"random": CALM})
    env.sim.qpos[0, 3:7] = torch.tensor([0.0, 1.0, 0.0, 0.0])
    env.sim.qpos[1, 2] = 0.06
    env.sim.qpos[1, 8::3] = math.pi  # Its legs point upwards.
    env.sim.forward()
    (dones,) = run(env, env.step_dt)
    assert dones.tolist() == [True, True, False]


@pytest.mark.parametrize("name", ["go1-velocity-flat", "go1-velocity-rough", "go2-velocity-flat"])
def test_a_mirror_image_moves_and_is_observed_as_the_image(name: str) -> None:
    same = {"payload": 0.0, "center_of_mass": 0.0, "gains": 1.0, "strength": 1.0, "friction": 0.6}
    equal = {key: (value, value) for key, value in same.items()} | {"delay": (0, 0)}
    env: Any = build(name, 2, parts={"random": CALM | equal})
    if "rough" in name:
        env.levels.now[:], env.column[:] = 3, 0
        env.reset()
    mirror = BUNDLED[name].load("env:mirror")
    joints = mirror(env, None, torch.linspace(-0.5, 0.5, 12)[None])[1]
    # A pyramid is the same on both sides of its middle.
    middle = env.origins[3, 0, 1] if "rough" in name else 0.0
    start = env.sim.qpos[0].clone()
    start[1] += 0.2
    start[2] += 0.3 * ("rough" in name)  # It falls freely there: bumps would magnify rounding.
    start[3:7] = torch.tensor([0.9, 0.1, 0.1, 0.3])
    for world, sign in enumerate((1, -1)):
        place = start.clone()
        place[1] = middle + sign * (start[1] - middle)
        place[[4, 6]] *= sign
        place[7:] = env.pose + 0.2 * joints[world]
        env.sim.qpos[world] = place
        env.sim.qvel[world] = 0.0
        env.command[world] = torch.tensor([0.5, 0.3 * sign, 0.2 * sign])
    env.has_heading[:] = False
    env.sim.forward()
    for _ in range(4):
        env.command[1] = env.command[0] * torch.tensor([1, -1, -1])
        env.step(joints)
    seen = env.step(joints)[0]
    images = mirror(env, seen[:1], None)[0][1:]
    for group, image in images.items():
        difference = (seen[group][1:] - image).abs()
        assert difference.max() < 0.1 * seen[group].abs().max(), group
        assert (seen[group][:1] - image).abs().max() > 0.3


def test_commands_keep_their_ranges_and_change() -> None:
    ranges = {"forward": (0.2, 0.4), "lateral": (-0.3, -0.1), "yaw": (-0.6, 0.6)}
    shares = {"standing_share": 0.25, "heading_share": 0.5, "seconds": (1.0, 2.0)}
    env: Any = build("go1-velocity-flat", 512, parts={"command": ranges | shares, "random": CALM})
    before = env.command.clone()
    stands = env.stands
    assert 0.15 < stands.float().mean() < 0.35
    assert (before[stands] == 0).all()
    for column, (low, high) in enumerate(ranges.values()):
        told = before[~stands, column]
        assert low <= told.min() < told.max() <= high
    run(env, 2.1)
    moved = ~stands & ~env.stands
    assert (env.command[moved, :2] != before[moved, :2]).any(dim=1).all()


def test_a_command_lasts_for_its_seconds_and_is_new_in_an_episode() -> None:
    steady = {"seconds": (0.4, 0.4), "heading_share": 0.0, "standing_share": 0.0}
    env: Any = build("go1-velocity-flat", 2, parts={"command": steady, "random": CALM})
    assert env.step_dt == pytest.approx(0.02)
    env.episode_length_buf[1] = env.max_episode_length - 7
    changes: list[list[int]] = [[], []]
    for step in range(1, 50):
        before = env.command.clone()
        run(env, env.step_dt)
        for world in (env.command != before).any(dim=1).nonzero().flatten().tolist():
            changes[world].append(step)
    assert changes == [[20, 40], [7, 27, 47]]


def test_arrows_show_commands_and_motion_in_the_robots_frame() -> None:
    env: Any = build("go1-velocity-flat", 2, parts={"random": CALM})
    half = math.pi / 4
    env.sim.qpos[:, 3:7] = torch.tensor([math.cos(half), 0.0, 0.0, math.sin(half)])  # Faces +y.
    env.sim.qvel.zero_()
    env.sim.qvel[:, 1], env.sim.qvel[:, 5] = 0.5, 1.0  # It moves forwards, and turns left.
    env.sim.forward()
    env.command[:] = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, -1.0]])
    arrows = {name: along.float() for name, (_, along) in env.debug_vis().items()}
    unit = env.above[2].float()  # What 1 rad/s is long; 1 m/s is twice as long.
    for name, rows in {
        "command": [[0.0, 2.0, 0.0], [-2.0, 0.0, 0.0]],
        "velocity": [[0.0, 1.0, 0.0]] * 2,
        "commanded turn": [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]],
        "turn": [[-1.0, 0.0, 0.0]] * 2,
    }.items():
        assert torch.allclose(arrows[name], unit * torch.tensor(rows), atol=1e-6), name
    start, _ = env.debug_vis()["command"]
    assert (start[:, 2] > env.sim.qpos[:, 2]).all()


def test_a_commanded_heading_is_steered_for() -> None:
    env: Any = build("go1-velocity-flat", 64, parts={"command": {"heading_share": 1.0}})
    turning = ~env.stands
    assert env.has_heading[turning].all()
    error = env.heading - env.yaw().float()
    error = torch.atan2(error.sin(), error.cos())
    expected = (0.5 * error).clamp(-1.0, 1.0)
    assert torch.allclose(env.command[turning, 2], expected[turning], atol=1e-5)
    assert expected.abs().max() <= 1.0
    assert math.pi / 4 < error.abs().max() <= math.pi


def test_each_world_has_a_robot_of_its_own_by_the_workers_seed() -> None:
    env, again, other = (build("go1-velocity-flat", seed=seed) for seed in (1, 1, 2))
    model, cfg = env.sim.model, env.cfg.random
    trunk, foot = model.body("trunk").id, model.geom("FR_foot").id
    payload = env.sim.expand("body_mass")[:, trunk] - model.body_mass[trunk]
    friction = env.sim.expand("geom_friction")[:, foot, 0]
    strength = env.sim.expand("actuator_forcerange")[:, 0, 1] / model.actuator_forcerange[0, 1]
    gains = env.sim.expand("actuator_gainprm")[:, 0, 0] / model.actuator_gainprm[0, 0]
    for found, (low, high) in (
        (payload, cfg.payload), (friction, cfg.friction), (strength, cfg.strength),
        (gains, cfg.gains),
    ):  # fmt: skip
        assert low - 1e-6 <= found.min() < found.max() <= high + 1e-6
        assert len(found.unique()) == env.num_envs
    for name in ("body_mass", "body_subtreemass", "geom_friction", "actuator_biasprm"):
        assert torch.equal(env.sim.expand(name), again.sim.expand(name))
        assert not torch.equal(env.sim.expand(name), other.sim.expand(name))


def test_the_cost_of_transport_is_that_of_the_weight_that_a_resume_restores() -> None:
    env, other = (build("go1-velocity-flat", seed=seed) for seed in (1, 2))
    other.sim.restore(env.sim.state())
    other.load_state_dict(env.state_dict())
    action = torch.zeros(env.num_envs, env.num_actions)
    for each in (env, other):
        each.step(action)
    weights = (each.metrics()["cost_of_transport"][1] for each in (env, other))
    assert torch.equal(*weights)


def test_pushes_come_and_noise_is_the_actors_alone() -> None:
    env = build("go1-velocity-flat", parts={"random": {"push_seconds": (0.5, 1.0)}})
    calm = build("go1-velocity-flat", parts={"random": CALM})
    speeds = []
    for each in (env, calm):
        run(each, 1.1)
        speeds.append(each.sim.qvel[:, :2].norm(dim=1).mean())
    assert speeds[0] > 2 * speeds[1]
    groups = calm.get_observations()
    assert torch.equal(groups["actor"][:, -45:-3], groups["critic"][:, :42])
    groups = env.get_observations()
    noisy, clean = groups["actor"][:, -45:-3], groups["critic"][:, :42]
    assert 0.1 < (noisy - clean)[:, 18:30].std() < 1.5  # Speeds of the joints.
    assert torch.equal(noisy[:, 30:], clean[:, 30:])  # The action.


def test_ground_gets_harder_for_who_gets_on_and_easier_for_who_does_not() -> None:
    # An evaluation is on all tiles.
    judged: Any = build("go1-velocity-rough", 64, share=EnvShard(0, 64, 64))
    assert len(set(zip(judged.levels.now.tolist(), judged.column.tolist(), strict=True))) == 64
    place = judged.sim.qpos[:, :2].float()
    assert ((place - judged.origins[judged.levels.now, judged.column][:, :2]).abs() < 0.6).all()
    env: Any = build("go1-velocity-rough", 64)
    before = judged.levels.now.clone()
    env.levels.now.copy_(before)
    env.wanted.fill_(10.0)
    env.walked[:32], env.walked[32:] = 9.0, 1.0
    env.episode_length_buf[:] = env.max_episode_length - 1
    run(env, env.step_dt)
    up, down = before[:32], before[32:]
    assert torch.equal(env.levels.now[:32][up < 7], up[up < 7] + 1)
    assert torch.equal(env.levels.now[32:], (down - 1).clamp(min=0))
    # It stands on the ground of the new tile, of which the value network sees the height.
    seen = env.get_observations()["critic"][:, -77:]
    assert seen.shape == (64, 77)
    middle = seen[:, 38]
    assert ((middle > 0.25) & (middle < 0.4)).all()
    place = env.sim.qpos[:, :2].float()
    assert ((place - env.origins[env.levels.now, env.column][:, :2]).abs() < 0.6).all()


@pytest.mark.parametrize("steps_left", [1, 500])
def test_a_fall_leads_to_no_harder_ground_however_far_the_robot_came(steps_left: int) -> None:
    env: Any = build("go1-velocity-rough", 4, parts={"random": CALM})
    env.levels.now[:] = before = 3
    env.reset()
    assert (env.levels.now == before).all()
    env.wanted.fill_(10.0)
    env.walked[:] = torch.tensor([9.0, 6.0, 1.0, 9.0])
    env.episode_length_buf[:] = env.max_episode_length - steps_left
    env.sim.qpos[:3, 3:7] = torch.tensor([0.0, 1.0, 0.0, 0.0])  # On their backs.
    env.sim.forward()
    (dones,) = run(env, env.step_dt)
    assert dones.tolist() == [True] * 3 + [steps_left == 1]
    assert env.levels.now.tolist() == [before, before, before - 1, before + (steps_left == 1)]
