"""Rough ground: what is drawn, what is stood on and what is looked up are the same."""

from typing import Any

import mujoco
import mujoco_warp as mjw
import numpy as np
import pytest
import torch
import warp as wp

from mjfleet.legged.scene import make_robot
from mjfleet.legged.terrain import Ground, make_terrain

from ..conftest import REPOSITORY

GO1 = REPOSITORY / "tasks/go1/go1.xml"
FEET = ("FR_foot", "FL_foot", "RR_foot", "RL_foot")


@pytest.fixture(scope="module")
def terrain() -> Any:
    return make_terrain()


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


def test_tiles_meet_at_height_zero(terrain: Any) -> None:
    for level in range(8):
        for column in range(8):
            heights = tile(terrain, level, column) + terrain.origins[level, column, 2]
            edges = (heights[0], heights[-1], heights[:, 0], heights[:, -1])
            assert np.concatenate(edges) == pytest.approx(0, abs=1e-4)
    assert np.abs(terrain.heights[:200]).max() == 0


def test_each_level_is_harder_than_the_one_before(terrain: Any) -> None:
    for column in range(8):
        tiles = [tile(terrain, level, column) for level in range(8)]
        step = np.array([np.abs(np.diff(heights)).max() for heights in tiles])
        assert (np.diff(step) > 0).all()
        assert step[0] < 0.04
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


def test_a_seed_gives_one_terrain(terrain: Any) -> None:
    again = make_terrain()
    assert (again.heights == terrain.heights).all()
    assert (again.origins == terrain.origins).all()
    assert (make_terrain(seed=1).heights != terrain.heights).any()


def test_all_heights_are_scaled() -> None:
    plain, low = (make_terrain(levels=2, columns=9, scale=scale) for scale in (1.0, 0.5))
    assert low.heights == pytest.approx(0.5 * plain.heights)
    assert low.origins[..., 2] == pytest.approx(0.5 * plain.origins[..., 2])


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


def test_warp_takes_the_model(model: mujoco.MjModel) -> None:
    with wp.ScopedDevice("cpu"):
        field = mjw.put_model(model).hfield_data.numpy()
    assert (field == model.hfield_data).all()
