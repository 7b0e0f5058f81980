"""Rays and height scans of a task: where they start, what they return, what they refuse."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from mjfleet.config import EnvConfig
from mjfleet.env.step_recorder import StepRecorder
from mjfleet.errors import UserError
from mjfleet.legged.terrain import Ground, make_terrain
from mjfleet.parts import HeightScan, Rays, grid, lidar
from mjfleet.sim import make_simulation
from mjfleet.video.render_process import render
from mjfleet.video.state_recording import StateRecorder

from ..conftest import needs_drawing, read_video
from ..env.test_env import BUNDLED, PlainEnv, no_host_synchronisation

NEAR = 5e-5
"""By how much numbers of some metres may differ, m: 2e-5 for float32, and as much on slopes since
rays start 1e-5 m beside their places."""
ENGINES = pytest.mark.parametrize(
    ("engine", "device"),
    [("native", "cpu"), ("warp", "cpu"), pytest.param("warp", "cuda:0", marks=pytest.mark.gpu)],
)
WORLDS = 8
ROOM = """<mujoco>
<default><geom contype="0" conaffinity="0"/></default>
<worldbody>
  <geom name="floor" type="plane" size="4 4 1"/>
  <geom name="wall" type="box" size=".1 9 9" pos="3.1 0 0"/>
  <geom name="step" type="box" size=".2 .2 .1" pos="-1 0 .1"/>
  <geom name="roof" type="box" size=".2 .2 .1" pos="0 0 2.1" group="1"/>
  <body name="robot" pos="0 0 1">
    <freejoint/>
    <geom name="shell" size=".3" mass="1" group="3"/>
    <geom size=".1" mass="0" rgba="1 1 1 0"/>
    <site name="head" pos=".5 0 0"/>
    <body name="leg"><joint name="knee" axis="0 1 0"/><geom size=".1" mass=".1" group="2"/></body>
  </body>
</worldbody>
<actuator><motor joint="knee"/></actuator></mujoco>"""
"""A robot above the middle of a finite floor, before a wall and below a roof."""
HERE: dict[str, Any] = {"offset": (0.0, 0.0, 0.0), "max_distance": 20.0, "miss": -7.0}


class RoomEnv(PlainEnv):
    """Its observation and reward are what its part returns."""

    def __init__(self, make_part: Callable[[Any], Any], *arguments: Any) -> None:
        self.make_part = make_part
        super().__init__(*arguments)

    def setup(self) -> None:
        self.part = self.make_part(self)

    def observe(self) -> dict[str, torch.Tensor]:
        return dict.fromkeys(("actor", "critic"), self.part())

    def rewards(self) -> dict[str, torch.Tensor]:
        return {"sum": self.part().sum(dim=1)}

    def debug_vis(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        return {"rays": self.part.arrows()}


def make(
    make_part: Callable[[Any], Any],
    engine: Any = "native",
    device: str = "cpu",
    spec: mujoco.MjSpec | None = None,
) -> Any:
    """Build the environment of a room, or of another model, with a part."""
    model = (spec or mujoco.MjSpec.from_string(ROOM)).compile()
    sim = make_simulation(engine, model, WORLDS, device=device)
    return RoomEnv(make_part, EnvConfig(num_envs=WORLDS, decimation=1), sim, 1)


def put(env: Any, place: Any, *turns: Any) -> torch.Tensor:
    """Move the robots to `(WORLDS, 3)` or one place; turn each, or all, by heading, pitch, roll.

    Returns what the part then returns.
    """
    quaternions = np.zeros((len(turns), 4))
    for quaternion, turn in zip(quaternions, turns, strict=True):
        mujoco.mju_euler2Quat(quaternion, turn, "zyx")
    env.sim.qpos[:, :3] = torch.as_tensor(place).to(env.sim.qpos)
    env.sim.qpos[:, 3:7] = torch.as_tensor(quaternions).to(env.sim.qpos)
    env.sim.forward()
    found = env.part()
    assert found.dtype == torch.float32
    return found.cpu()


LEVEL = 0.0, 0.0, 0.0


def make_on_rough_ground(pattern: Any, offset: float, engine: Any, device: str) -> tuple[Any, Any]:
    """Build an environment that scans rough ground; returns the ground, too."""
    terrain, spec = make_terrain(), mujoco.MjSpec.from_string(ROOM)
    for name in ("wall", "step"):
        spec.delete(spec.geom(name))
    terrain.put_into(spec, spec.geom("floor"))
    above: dict[str, Any] = {"offset": (offset, 0.0, 1.5), "max_distance": 9.0, "miss": -7.0}
    env = make(lambda env: HeightScan(env, pattern, "robot", **above), engine, device, spec)
    return env, terrain


@ENGINES
def test_a_scan_of_rough_ground_is_the_table_of_its_heights(engine: str, device: str) -> None:
    pattern = grid(1.0, 0.6, 0.1)
    env, terrain = make_on_rough_ground(pattern, 0.1, engine, device)
    ground, origins = Ground(torch.as_tensor(terrain.heights)), torch.as_tensor(terrain.origins)
    rng, x, y = np.random.default_rng(0), pattern[0][:, 0] + 0.1, pattern[0][:, 1]
    for column in range(8):  # Each kind of ground, at all eight levels.
        places = origins[:, column] + torch.as_tensor(rng.uniform(-4, 4, (WORLDS, 3))).float()
        places[:, 2] = 2.5
        turns = rng.uniform((-3.1, -0.5, -0.5), (3.1, 0.5, 0.5), (WORLDS, 3))
        found = put(env, places, *turns)
        cos, sin = (torch.as_tensor(f(turns[:, :1])).float() for f in (np.cos, np.sin))
        points = torch.stack((cos * x - sin * y, sin * x + cos * y), dim=2) + places[:, None, :2]
        assert (found - (2.5 - ground.heights_at(points))).abs().max() < NEAR
        assert found.std() > 0.01


@ENGINES
def test_no_ray_slips_through_where_triangles_of_the_ground_meet(engine: str, device: str) -> None:
    pattern = grid(4.0, 4.0, 0.1)
    env, terrain = make_on_rough_ground(pattern, 0.0, engine, device)
    ground, origins = Ground(torch.as_tensor(terrain.heights)), torch.as_tensor(terrain.origins)
    for column in range(8):
        places = origins[:, column] * torch.tensor([1.0, 1.0, 0.0]) + torch.tensor([0.0, 0.0, 2.5])
        points = pattern[0][:, :2] + places[:, None, :2]
        found = put(env, places, *[LEVEL] * WORLDS)
        assert (found - (2.5 - ground.heights_at(points))).abs().max() < NEAR


def test_a_scan_can_stand_for_the_table_of_the_bundled_robots() -> None:
    found = BUNDLED["go1-velocity-rough"]
    rough_env: Any = found.load(found.task.env_class)

    class ScanningEnv(rough_env):
        def setup(self) -> None:
            super().setup()
            above: dict[str, Any] = {"offset": (0.0, 0.0, 1.0), "max_distance": 5.0, "miss": -7.0}
            self.rays = HeightScan(self, grid(1.0, 0.6, 0.1), self.base, **above)

    cfg = replace(found.task.env, num_envs=64, start_levels=8)
    env: Any = ScanningEnv(cfg, make_simulation("native", ScanningEnv.make_model(cfg), 64), 1)
    (table,) = (part for part in env.truth if part.name == "scan")
    for _ in range(10):
        env.step(torch.randn(64, env.num_actions))
        assert (env.rays() - table.read()).abs().max() < NEAR
    assert table.read().std() > 0.02


@ENGINES
@pytest.mark.parametrize(
    ("alignment", "turn", "distance"),
    [
        ("base", LEVEL, 3.0),
        ("base", (0.3, 0.0, 0.0), 3.0 / math.cos(0.3)),
        (None, (0.0, 0.9, 0.0), 1.0 / math.sin(0.9)),
        ("yaw", (0.3, 0.9, 0.2), 3.0 / math.cos(0.3)),
        ("yaw", (0.0, 1.5, 0.0), 3.0),
        ("world", (0.3, 0.9, 0.2), 3.0),
    ],
)
def test_rays_tilt_turn_or_stay_as_they_are_aligned(
    engine: str, device: str, alignment: Any, turn: Any, distance: float
) -> None:
    env = make(
        lambda env: Rays(env, lidar([0.0]), "robot", alignment=alignment, **HERE), engine, device
    )
    assert put(env, (0.0, 0.0, 1.0), turn) == pytest.approx(distance, abs=NEAR)


def test_rays_start_at_their_points_of_a_body_or_site() -> None:
    ahead = lidar([0.0])
    for frame, offset, distance in (
        ("robot", (0.0, 0.0, 0.0), 3.0),
        ("robot", (1.0, 2.0, 0.0), 2.0),
        ("head", (0.0, 0.0, 0.0), 2.5),
    ):
        env = make(lambda env, f=frame, o=offset: Rays(env, ahead, f, **dict(HERE, offset=o)))
        assert put(env, (0.0, 0.0, 1.0), LEVEL) == pytest.approx(distance, abs=NEAR)
    both = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.5]]), torch.tensor([[2.0, 0, 0], [0, 0, -5]])
    env = make(lambda env: Rays(env, both, "robot", **HERE))
    assert put(env, (0.0, 0.0, 1.0), LEVEL)[0].tolist() == pytest.approx([3.0, 1.5], abs=NEAR)


def test_patterns_are_ordered_as_they_say() -> None:
    starts, directions = grid(1.0, 0.2, 0.1)
    assert starts.shape == directions.shape == (33, 3)
    assert starts[[0, 1, 3, 32]].flatten().tolist() == pytest.approx(
        [-0.5, -0.1, 0, -0.5, 0, 0, -0.4, -0.1, 0, 0.5, 0.1, 0]
    )
    assert directions.unique(dim=0).tolist() == [[0, 0, -1]]
    starts, _ = grid(0.1, 0.0, 0.3)  # An edge shorter than the spacing has both of its ends.
    assert starts.flatten().tolist() == pytest.approx([-0.05, 0, 0, 0.05, 0, 0])
    starts, directions = lidar([0.0, math.pi / 2], [0.0, math.pi / 4])
    slope = math.sqrt(0.5)
    assert not starts.any()
    expected = [1, 0, 0, 0, 1, 0, slope, 0, slope, 0, slope, slope]
    assert directions.flatten().tolist() == pytest.approx(expected, abs=1e-6)


@ENGINES
def test_a_miss_is_what_was_asked_for_and_never_a_floor(engine: str, device: str) -> None:
    def make_part(kind: type[Rays]) -> Callable[[Any], Rays]:
        reach: dict[str, Any] = {"offset": (0.0, 0.0, 0.5), "max_distance": 1.6, "miss": -7.0}
        return lambda env: kind(env, grid(0.0, 0.0, 1.0), "robot", **reach)

    for part, height in ((Rays, 1.5), (HeightScan, 1.0)):
        env = make(make_part(part), engine, device)
        for place, found in (
            ((0.0, 0.0, 1.0), height),
            ((0.0, 0.0, 1.2), -7.0),  # The floor is farther away than rays go.
            ((-1.0, 0.0, 1.2), height),  # A step is 0.2 m high.
            ((3.9, 0.0, 1.0), height),
            ((4.1, 0.0, 1.0), -7.0),  # There is no floor.
            ((0.0, 0.0, -0.6), -7.0),  # The floor is above.
        ):
            assert put(env, place, LEVEL) == pytest.approx(found, abs=NEAR), (part, place)


@ENGINES
def test_a_roof_is_seen_from_above_alone(engine: str, device: str) -> None:
    def scan(env: Any, lift: float) -> HeightScan:
        reach = HERE | {"offset": (0.0, 0.0, lift), "groups": (1, 0)}
        return HeightScan(env, grid(0.0, 0.0, 1.0), "robot", **reach)

    for lift, height in ((0.5, 1.0), (1.5, -1.2)):
        env = make(lambda env, lift=lift: scan(env, lift), engine, device)
        assert put(env, (0.0, 0.0, 1.0), LEVEL) == pytest.approx(height, abs=NEAR)


@ENGINES
def test_a_step_with_rays_does_not_wait_for_the_device(
    engine: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in (Rays, HeightScan):
        env = make(lambda env, kind=part: kind(env, lidar([0, 1]), "head", **HERE), engine, device)
        with torch.inference_mode():
            env.step(torch.zeros(WORLDS, 1, device=device))
            with no_host_synchronisation(monkeypatch):
                env.step(torch.zeros(WORLDS, 1, device=device))
                env.part.arrows()


def test_arrows_end_where_rays_hit() -> None:
    env = make(lambda env: Rays(env, lidar([0.0, math.pi]), "robot", **HERE))
    put(env, (0.0, 0.0, 1.0), LEVEL)
    starts, vectors = env.debug_vis()["rays"]
    assert starts.shape == vectors.shape == (WORLDS, 2, 3)
    assert (starts + vectors)[:, 0].tolist() == [pytest.approx([3.0, 0.0, 1.0], abs=NEAR)] * WORLDS
    assert vectors[0, 0].tolist() == pytest.approx([0.05, 0.0, 0.0])
    assert not vectors[:, 1].any(), "nothing is behind the robot"


@needs_drawing
def test_a_video_shows_where_rays_hit(tmp_path: Path) -> None:
    env = make(lambda env: HeightScan(env, grid(1.6, 1.6, 0.4), "robot", **HERE))
    put(env, (0.0, 0.0, 0.4), LEVEL)
    env.recorder = StepRecorder(1)
    recorder = StateRecorder(env, env.step_dt)
    env.step(torch.zeros(WORLDS, 1))
    recorder.take()
    recording = recorder.finish("room")
    assert recording.steps["arrow/rays"].shape == (1, 4, 2, 25, 3)
    bare = replace(recording, steps={k: v for k, v in recording.steps.items() if "arrow" not in k})
    render(bare, tmp_path / "bare.mp4")
    render(recording, tmp_path / "rays.mp4")
    (without,), (shown,) = (read_video(tmp_path / f"{name}.mp4") for name in ("bare", "rays"))
    changed = np.abs(shown.astype(int) - without)[:400].max(axis=2) > 20  # Without the captions.
    assert changed.sum() > 200


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"frame": "rbot"},
            r"'rbot': no such site or body. Sites: head; bodies: world, rob",
        ),
        ({"frame": None}, "None: no such site or body."),
        ({"pattern": (torch.zeros(2, 3), torch.eye(3)[:2] * torch.tensor([0, 1, 1]))}, "length 0"),
        ({"pattern": 3}, r"pattern must be two tensors, \(rays, 3\), as of `grid`"),
        ({"pattern": (torch.zeros(3), torch.ones(3))}, "pattern must be two tensors"),
        ({"pattern": (torch.zeros(3, 3), torch.ones(2, 3))}, "pattern must be two tensors"),
        ({"offset": (0.0, 1.0)}, r"offset is \(0.0, 1.0\); it must be three numbers"),
        ({"alignment": "flat"}, "alignment is 'flat'; it must be one of: base, yaw, world"),
        ({"max_distance": 0.0}, r"max_distance is 0.0; it must be above 0"),
        ({"groups": (4, 5)}, r"no geom to hit is in the groups \(4, 5\); there are some in: 0, 1"),
        ({"groups": (0, 7)}, r"groups is \(0, 7\); it must be numbers of geom groups, 0 to 5"),
        ({"groups": "0"}, r"groups is '0'; it must be numbers of geom groups, .* such as \(0, 1\)"),
        ({"groups": 7}, "groups is 7; it must be numbers of geom groups, 0 to 5"),
        ({"groups": (0, 3)}, r"geom 'shell' is in group 3\. Put all geoms of the robot"),
        ({"groups": (0, 2)}, r"geom 6 of body 'leg' is in group 2\. Put"),
    ],
)
def test_what_cannot_be_is_one_message(change: dict[str, Any], message: str) -> None:
    given = {"pattern": lidar([0.0]), "frame": "robot"} | HERE | change
    with pytest.raises(UserError, match=f"^RoomEnv: Rays on [^\n]*{message}[^\n]*$"):
        make(lambda env: Rays(env, **given))
    for edges in ((1.0, 1.0, -0.1), (-1.0, 1.0, 0.1), ("1", 1.0, 0.1)):
        with pytest.raises(
            UserError, match=r"grid\(.*\): the edges must be at least 0, the spacing"
        ):
            grid(*edges)  # pyright: ignore[reportArgumentType]


def test_a_robot_that_shares_a_group_with_the_floor_is_named_with_it() -> None:
    spec = mujoco.MjSpec.from_string(ROOM)
    for geom in spec.geoms:
        geom.group = 0
    message = r"HeightScan on 'head': rays would hit the robot: geom 'shell' is in group 0, as is "
    with pytest.raises(UserError, match=f"{message}geom 'floor'. Put all geoms of the robot"):
        make(lambda env: HeightScan(env, grid(1, 1, 1), "head", **HERE), spec=spec)
