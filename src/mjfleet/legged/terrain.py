"""Rough ground: one height field, a grid of tiles that get harder level by level.

The environment makes it, in each worker; all worlds share it.

Grid, kinds of tile and figures follow legged_gym (Rudin et al. 2022, arXiv:2109.11978;
`legged_gym/utils/terrain.py`), Isaac Lab (`ROUGH_TERRAINS_CFG`, `UnitreeGo1RoughEnvCfg`) and mjlab
(gaps: `BoxNestedRingsTerrainCfg`). Stairs and obstacles end at 0.14 m, a third of a Go1's leg.

A height field has no vertical walls: a riser is a slope over one cell, 0.1 m long.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
import torch

CELL = 0.1
"""Distance of neighbouring points, m."""
TILE = 80
"""Cells along a tile's edge: 8 m."""
BORDER = 200
"""Cells of flat ground around all tiles: 20 m."""
PLATFORM = 30
"""Cells from a tile's edge to the flat square in its middle, of 2 m, where robots start."""

# At full difficulty:
STAIRS = 0.14
"""Height of a step, m."""
SLOPE = 0.4
"""Rise per run."""
ROUGHNESS = 0.06
"""Height of the highest points of rough ground above the lowest, m."""
BLOCKS = 0.1
"""Largest height and depth of a block, m."""
OBSTACLES = 0.14
"""Largest height and depth of an obstacle, m."""
GAPS = 0.5, 0.4
"""Depth of gaps and their width at the top, m."""
POSTS = 0.2
"""Largest height of a post, m: half a leg."""

Shape = Callable[[np.random.Generator, float], np.ndarray]
"""Returns a tile, which is then multiplied by its difficulty (the second argument): heights
`(TILE + 1, TILE + 1)`, m, 0 along the edge."""

_from_middle = np.abs(np.arange(TILE + 1) - TILE // 2)
_from_edge = TILE // 2 - np.maximum(_from_middle[:, None], _from_middle)
"""Cells between each point of a tile and the tile's edge."""


def _around_platform(heights: np.ndarray) -> np.ndarray:
    """Flatten the middle, where robots start, and the edge, where tiles meet."""
    return np.where((_from_edge > 2) & (_from_edge < PLATFORM), heights, 0.0)


def _rough(rng: np.random.Generator, _: float) -> np.ndarray:
    """Return random heights for all points."""
    return _around_platform(rng.uniform(0.0, ROUGHNESS, _from_edge.shape))


def _slope(*_: object) -> np.ndarray:
    """Return a pyramid, 3 m from its foot to the platform."""
    return SLOPE * CELL * np.minimum(_from_edge, PLATFORM)


def _stairs(*_: object) -> np.ndarray:
    """Return a pyramid of ten steps, each 0.3 m deep."""
    return STAIRS * (np.minimum(_from_edge, PLATFORM) // 3)


def _blocks(rng: np.random.Generator, _: float) -> np.ndarray:
    """Return adjacent blocks of 0.5 m with random heights."""
    heights = rng.uniform(-BLOCKS, BLOCKS, (TILE // 5 + 1, TILE // 5 + 1))
    return _around_platform(np.kron(heights, np.ones((5, 5)))[: TILE + 1, : TILE + 1])


def _obstacles(rng: np.random.Generator, _: float) -> np.ndarray:
    """Return forty rectangles with edges of 1 to 2 m, above or below the ground."""
    heights = np.zeros(_from_edge.shape)
    for _ in range(40):
        (row, column), (length, width) = rng.integers(TILE, size=2), rng.integers(10, 21, size=2)
        height = OBSTACLES * rng.choice((-1.0, -0.5, 0.5, 1.0))
        heights[row : row + length, column : column + width] = height
    return _around_platform(heights)


def _gaps(_: np.random.Generator, difficulty: float) -> np.ndarray:
    """Return three square gaps around the platform, 1 m apart, the wider the harder."""
    depth, width = GAPS
    points = math.ceil(difficulty * round(width / CELL - 1))  # At the bottom.
    return _around_platform(-depth * ((_from_edge - 5) % 10 < points))


def _ring(rng: np.random.Generator, _: float) -> np.ndarray:
    """Return a square ring of posts around the platform, 0.5 m wide, with 0.5 m between them."""
    # Numbers of squares of 0.5 m; the middle one is 0.
    place = (np.arange(TILE + 1) + 2) // 5 - TILE // 10
    away = np.maximum(np.abs(place)[:, None], np.abs(place))
    heights = rng.uniform(POSTS / 2, POSTS, 2 * (TILE // 5 + 1,))[place[:, None], place]
    return np.where((away == 5) & ((place[:, None] + place) % 2 == 0), heights, 0.0)


TERRAIN_KINDS: dict[str, Shape] = {
    "rough": _rough,
    "slope_up": _slope,
    "slope_down": lambda *how: -_slope(*how),
    "rough_slope": lambda *how: _slope(*how) + _rough(*how),
    "stairs_up": _stairs,
    "stairs_down": lambda *how: -_stairs(*how),
    "blocks": _blocks,
    "obstacles": _obstacles,
    "flat": lambda *_: np.zeros(_from_edge.shape),
    "gaps": _gaps,
    "ring": _ring,
}
"""Kinds of tile. Up and down are towards the middle, where robots start."""
USUAL = tuple(TERRAIN_KINDS)[:8]
"""Kinds of the usual ground, column by column."""


def mixed_kinds(shares: Mapping[str, float], columns: int) -> tuple[str, ...]:
    """Return the kind of each column; the usual ones if all shares are 0.

    Each kind that has a share gets a column, in the order of `shares`. Each further one goes to the
    kind with the largest share for each column that it has (Adams' method of apportionment).
    """
    counts = {kind: 0 for kind, share in shares.items() if share > 0}
    if not counts:
        return USUAL
    kinds = []
    for _ in range(columns):
        kind = max(counts, key=lambda k: shares[k] / counts[k] if counts[k] else math.inf)
        kinds.append(kind)
        counts[kind] += 1
    return tuple(kinds)


@dataclass(frozen=True)
class Terrain:
    """The ground. x grows with the level, y with the column; the origin is in the middle.

    A level's difficulty is `(level + 1) / levels`, by which all heights are multiplied: the first
    of eight levels has steps of 2 cm, the last those above.
    """

    heights: np.ndarray
    """Heights of all points, `(points along y, points along x)`, float32, m."""
    origins: np.ndarray
    """Middle of each tile, on the ground, `(levels, columns, 3)`, float32, m."""
    kinds: tuple[str, ...]
    """Kind of each column's tiles."""

    def put_into(self, spec: mujoco.MjSpec, floor: mujoco.MjsGeom) -> None:
        """Make a geom of a model show it, as the height field `terrain`."""
        field = spec.add_hfield(name="terrain")
        field.nrow, field.ncol = self.heights.shape
        # MuJoCo scales the data to [0, 1], and those to [0, size[2]] above the geom.
        field.userdata = self.heights.ravel()
        low, high = float(self.heights.min()), float(self.heights.max())
        half_y, half_x = (CELL * (points - 1) / 2 for points in self.heights.shape)
        field.size = half_x, half_y, high - low or 1.0, 1.0
        floor.type, floor.hfieldname = mujoco.mjtGeom.mjGEOM_HFIELD, field.name
        floor.pos = 0.0, 0.0, low


def make_terrain(
    levels: int = 8,
    columns: int = 8,
    seed: int = 0,
    scale: float = 1.0,
    kinds: Sequence[str] = USUAL,
) -> Terrain:
    """Generate a terrain of so many levels and tiles of each, all heights multiplied by `scale`.

    `kinds` are those of the columns, and repeat if there are more.
    """
    rng = np.random.default_rng(seed)
    shape = (columns * TILE + 2 * BORDER + 1, levels * TILE + 2 * BORDER + 1)
    heights = np.zeros(shape, np.float32)
    origins = np.zeros((levels, columns, 3), np.float32)
    kinds = tuple(kinds[column % len(kinds)] for column in range(columns))
    for level in range(levels):
        for column, kind in enumerate(kinds):
            tile = scale * TERRAIN_KINDS[kind](rng, (level + 1) / levels) * (level + 1) / levels
            row, start = BORDER + column * TILE, BORDER + level * TILE
            heights[row : row + TILE + 1, start : start + TILE + 1] = tile
            place = np.array([level - (levels - 1) / 2, column - (columns - 1) / 2])
            origins[level, column, :2] = TILE * CELL * place
            origins[level, column, 2] = tile[TILE // 2, TILE // 2]
    return Terrain(heights, origins, kinds)


class Ground:
    """The heights of a terrain on a device, to look them up."""

    def __init__(self, heights: torch.Tensor) -> None:
        """Take `Terrain.heights`."""
        near, below = heights[:-1, :-1], heights[:-1, 1:]
        above, far = heights[1:, :-1], heights[1:, 1:]
        # A cell's diagonal goes from its nearest corner to its farthest; below it lies x > y.
        triangles = (near, below - near, far - below), (near, far - above, above - near)
        self.planes = torch.stack([torch.stack(triangle, dim=2) for triangle in triangles], dim=2)
        """Height at the nearest corner and slopes along x and y (m per cell), of the two triangles
        of each cell: `(rows, columns, 2, 3)`."""
        size = heights.new_tensor((heights.shape[1] - 1, heights.shape[0] - 1))
        self._zero, self._middle, self._size = 0 * size, size / 2, size
        self._first, self._last = self._zero.long(), size.long() - 1

    def heights_at(self, xy: torch.Tensor) -> torch.Tensor:
        """Return the ground's height `(...)` under points `xy` `(..., 2)`, m.

        The ground is MuJoCo's triangles. Beyond the ground its edge continues; a NaN gives a NaN.
        """
        place = (xy / CELL + self._middle).clamp(self._zero, self._size)
        # A NaN must not become an index.
        cell = place.long().clamp(self._first, self._last)
        x, y = (place - cell).unbind(-1)
        column, row = cell.unbind(-1)
        height, along_x, along_y = self.planes[row, column, (x <= y).long()].unbind(-1)
        return height + x * along_x + y * along_y
