"""Rough ground: what is drawn, what is stood on and what is looked up are the same."""

from dataclasses import fields
from hashlib import sha256
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from mjfleet.config import from_dict
from mjfleet.errors import UserError
from mjfleet.legged.config import RoughVelocityConfig, TerrainSharesConfig
from mjfleet.legged.scene import make_robot
from mjfleet.legged.terrain import TERRAIN_KINDS, Ground, make_terrain, mixed_kinds

from ..conftest import REPOSITORY

GO1 = REPOSITORY / "tasks/go1/go1.xml"
FEET = ("FR_foot", "FL_foot", "RR_foot", "RL_foot")


@pytest.fixture(scope="module")
def terrain() -> Any:
    return make_terrain()


@pytest.fixture(scope="module")
def mixed() -> Any:
    """A column of each kind."""
    return make_terrain(columns=len(TERRAIN_KINDS), kinds=tuple(TERRAIN_KINDS))


@pytest.fixture(scope="module")
def model(terrain: Any) -> mujoco.MjModel:
    return make_robot(GO1, "trunk", FEET, terrain)


def look_up(terrain: Any, xy: np.ndarray) -> np.ndarray:
    points = torch.as_tensor(xy, dtype=torch.float32)
    return Ground(torch.as_tensor(terrain.heights)).heights_at(points).numpy()


def tile(terrain: Any, level: int, column: int) -> np.ndarray:
    """Heights of a tile less those of its middle, m."""
    x, y, z = terrain.origins[level, column]
    steps = np.arange(-40, 41) * 0.1
    grid = np.stack(np.meshgrid(x + steps, y + steps), axis=-1)
    return look_up(terrain, grid) - z


def stand_at(model: mujoco.MjModel, place: np.ndarray) -> mujoco.MjData:
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, model.key("home").id)
    data.qpos[:3] += place
    return data


def test_the_lookup_is_the_surface_that_mujoco_has(terrain: Any, model: mujoco.MjModel) -> None:
    data = mujoco.MjData(model)
    data.qpos[2] = 50
    mujoco.mj_forward(model, data)
    rng = np.random.default_rng(0)
    points = rng.uniform(-51.9, 51.9, (300, 2))
    points = np.concatenate((points, rng.uniform(-32, 32, (1000, 2))))
    ground = []
    for x, y in points:
        start, down, geom = np.array([x, y, 5.0]), np.array([0.0, 0, -1]), np.zeros(1, np.int32)
        ground.append(5.0 - mujoco.mj_ray(model, data, start, down, None, 1, -1, geom))
        assert geom[0] == model.geom("floor").id
    assert np.ptp(ground) > 2
    assert look_up(terrain, points) == pytest.approx(np.array(ground), abs=1e-4)


def test_the_lookup_takes_any_shape_and_any_number(terrain: Any) -> None:
    heights = torch.as_tensor(terrain.heights)
    grid = torch.as_tensor(terrain.origins[:, :, :2])
    assert Ground(heights).heights_at(grid).shape == grid.shape[:-1]
    nowhere = torch.tensor([[1e6, 0.0], [0.0, -1e30], [torch.inf, -torch.inf], [torch.nan, 0.0]])
    found = Ground(heights).heights_at(nowhere)
    assert found[:3].tolist() == [0, 0, 0]
    assert found[3].isnan()


def test_origins_lie_on_the_ground_in_the_middle_of_flat_squares(terrain: Any) -> None:
    origins = terrain.origins.reshape(-1, 3)
    assert len(np.unique(origins[:, :2], axis=0)) == 64
    for offset in ((0, 0), (0.99, 0.99), (-0.99, 0.99), (0.99, -0.99), (-0.99, -0.99)):
        assert look_up(terrain, origins[:, :2] + offset) == pytest.approx(origins[:, 2], abs=1e-5)


def test_tiles_meet_at_height_zero(mixed: Any) -> None:
    for level in range(8):
        for column in range(len(TERRAIN_KINDS)):
            heights = tile(mixed, level, column) + mixed.origins[level, column, 2]
            edges = (heights[0], heights[-1], heights[:, 0], heights[:, -1])
            assert np.concatenate(edges) == pytest.approx(0, abs=1e-4)
    assert np.abs(mixed.heights[:200]).max() == 0


@pytest.mark.parametrize("kind", [kind for kind in TERRAIN_KINDS if kind != "flat"])
def test_each_level_is_harder_than_the_one_before(mixed: Any, kind: str) -> None:
    tiles = [tile(mixed, level, mixed.kinds.index(kind)) for level in range(8)]
    step = np.array([np.abs(np.diff(heights)).max() for heights in tiles])
    assert (np.diff(step) > 0).all()
    assert step[0] < 0.07
    # Linearly, but for what is drawn by chance.
    assert step / step[-1] == pytest.approx(np.arange(1, 9) / 8, abs=0.15)


def test_the_hardest_level_has_the_published_figures(terrain: Any) -> None:
    rough, up, down, _, stairs_up, stairs_down, blocks, obstacles = (
        tile(terrain, 7, column) for column in range(8)
    )
    assert 0.05 < np.ptp(rough) <= 0.0601
    assert up.min() == pytest.approx(-0.4 * 3.0, abs=1e-4)
    assert down.max() == pytest.approx(0.4 * 3.0, abs=1e-4)
    treads = np.round(np.unique(np.round(stairs_up, 3)), 3)
    assert treads == pytest.approx(0.14 * np.arange(-10, 1), abs=1e-3)
    assert stairs_down == pytest.approx(-stairs_up, abs=1e-4)
    assert 0.09 < np.abs(blocks).max() <= 0.1001
    assert np.abs(obstacles).max() == pytest.approx(0.14, abs=1e-4)


def test_flat_ground_gaps_and_posts_have_their_figures(mixed: Any) -> None:
    def middle_row(kind: str, level: int) -> np.ndarray:
        """Heights from the platform's edge to the tile's."""
        return tile(mixed, level, mixed.kinds.index(kind))[40, 50:]

    assert (tile(mixed, 7, mixed.kinds.index("flat")) == 0).all()
    for level, width in ((0, 0.2), (3, 0.3), (7, 0.4)):
        gaps = middle_row("gaps", level)
        assert gaps.min() == pytest.approx(-0.5 * (level + 1) / 8, abs=1e-5)
        assert (gaps < -1e-4).sum() == pytest.approx(3 * (width / 0.1 - 1))
        assert (np.diff((gaps < -1e-4).astype(int)) == 1).sum() == 3
    ring = tile(mixed, 7, mixed.kinds.index("ring"))
    assert 0.19 < ring.max() <= 0.2001
    assert (ring > 0.0999).sum() == 20 * 25  # Points of 20 posts.
    assert ring.min() == pytest.approx(0, abs=1e-4)
    assert (middle_row("ring", 7) < 1e-4).all()  # It can be left between two posts.
    assert (np.abs(ring - ring.T) > 0.01).any()  # Posts differ.


def test_shares_say_how_many_columns_each_kind_has() -> None:
    assert mixed_kinds({"flat": 1.0, "ring": 3.0, "gaps": 0.0}, 8) == (
        *("flat", "ring", "ring", "ring", "flat", "ring", "ring", "ring"),
    )
    # A small share has a column, too.
    few = mixed_kinds({"flat": 98.0, "ring": 1.0, "gaps": 1.0}, 8)
    assert (few.count("ring"), few.count("gaps")) == (1, 1)
    usual = (*TERRAIN_KINDS,)[:8]
    assert mixed_kinds(dict.fromkeys(usual, 0.2), 12) == (*usual, *usual[:4])
    assert mixed_kinds({"flat": 0.0}, 3) == usual
    assert make_terrain(columns=3, levels=1).kinds == usual[:3]


def test_the_usual_ground_is_that_of_the_bundled_policies(terrain: Any) -> None:
    shares = TerrainSharesConfig(**dict.fromkeys(terrain.kinds, 1.0))
    for ground in (terrain, make_terrain(kinds=mixed_kinds(vars(shares), 8))):
        digest = sha256(ground.heights.tobytes() + ground.origins.tobytes()).hexdigest()
        assert digest[:16] == "4dae9dfe6ee44f63"


def test_shares_have_the_kinds_that_there_are() -> None:
    assert [field.name for field in fields(TerrainSharesConfig)] == [*TERRAIN_KINDS]
    with pytest.raises(UserError, match=r"`terrain_shares\.hills`; known here: rough, .*ring"):
        from_dict(RoughVelocityConfig(), {"terrain_shares": {"hills": 1}})
    with pytest.raises(UserError, match=r"--env.terrain-shares.flat is -1.*at least 0"):
        TerrainSharesConfig(flat=-1.0)
    shares = TerrainSharesConfig(flat=1.0, gaps=1.0, ring=0.1)
    with pytest.raises(UserError, match=r"--env.columns is 2; .* at least 3, one for each kind"):
        RoughVelocityConfig(columns=2, terrain_shares=shares)


def test_robots_stand_on_flat_ground_alone() -> None:
    flat = make_terrain(levels=1, columns=1, kinds=("flat",))
    data = stand_at(make_robot(GO1, "trunk", FEET, flat), flat.origins[0, 0])
    while data.time < 0.5:
        mujoco.mj_step(data.model, data)
    assert data.qpos[2] == pytest.approx(0.3, abs=0.015)


def test_another_seed_gives_another_terrain(terrain: Any) -> None:
    assert (make_terrain(seed=1).heights != terrain.heights).any()


def test_all_heights_are_scaled() -> None:
    plain, low = (make_terrain(levels=2, columns=9, scale=scale) for scale in (1.0, 0.5))
    assert low.heights == pytest.approx(0.5 * plain.heights)
    assert low.origins[..., 2] == pytest.approx(0.5 * plain.origins[..., 2])


def test_a_seed_below_0_is_refused() -> None:
    with pytest.raises(UserError, match="terrain-seed is -1; it must be between 0 and"):
        RoughVelocityConfig(terrain_seed=-1)


def test_any_number_of_levels_and_columns() -> None:
    small = make_terrain(levels=2, columns=9)
    assert small.origins.shape == (2, 9, 3)
    assert np.ptp(tile(small, 1, 8)) == pytest.approx(np.ptp(tile(small, 1, 0)), abs=0.005)
    model = make_robot(GO1, "trunk", FEET, small)
    assert model.hfield_size[0, :2] == pytest.approx([20 + 8, 20 + 36])


@pytest.mark.parametrize(("level", "column"), [(0, 0), (3, 5), (7, 2), (7, 4)])
def test_it_stands_where_it_starts(
    terrain: Any, model: mujoco.MjModel, level: int, column: int
) -> None:
    place = terrain.origins[level, column] + np.array([0.4, -0.4, 0.0])
    data = stand_at(model, place)
    while data.time < 1.5:
        mujoco.mj_step(model, data)
    floor = model.geom("floor").id
    touching = {model.geom(geom).name for geom in data.contact.geom.ravel() if geom != floor}
    assert touching == {*FEET}
    assert np.linalg.norm(data.qpos[:2] - place[:2]) < 0.05
    assert data.qpos[2] - place[2] == pytest.approx(0.3, abs=0.015)
    assert data.sensor("base_up").data[2] > 0.99
