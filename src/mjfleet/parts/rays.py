"""Rays from a robot to what is around it, and the height scan. Runs in a worker."""

from collections.abc import Sequence
from numbers import Real
from typing import Any, Literal

import mujoco
import numpy as np
import torch

from mjfleet.env import Env
from mjfleet.errors import UserError
from mjfleet.sim import Simulation, group_flags

Pattern = tuple[torch.Tensor, torch.Tensor]
"""Where rays start, `(rays, 3)`, m, and where they point, `(rays, 3)`, in the axes of a frame."""
Alignment = Literal["base", "yaw", "world"]
FOLLOWS: dict[Alignment, float | None] = {"base": None, "yaw": 1.0, "world": 0.0}
"""Share of a frame's heading by which rays turn; None: they also tilt with it."""
ASIDE = torch.tensor((1e-5, 6e-6, 3e-6))
"""How far all rays start beside their places, m. Rounding lets rays that go exactly through a point
or an edge of a height field slip through: one in 1,000 of those that MuJoCo casts at its points."""
ARROW = 0.05
"""Length of the arrows that show where rays hit, m."""


def grid(length: float, width: float, spacing: float) -> Pattern:
    """Return rays that point down, from a rectangle of points around the frame's origin.

    They are ordered by x, from the back to the front; those of one x by y, from right to left.

    Args:
        length: of the rectangle, along x, m.
        width: along y, m.
        spacing: between points, m, or what is nearest to it and divides an edge.

    Raises:
        UserError: an edge is below 0, or `spacing` is not above 0.
    """
    numbers = length, width, spacing
    if not (all(isinstance(one, Real) for one in numbers) and min(length, width) >= 0 < spacing):
        raise UserError(f"grid{numbers}: the edges must be at least 0, the spacing above 0.")
    counts = ((edge, max(round(edge / spacing), edge > 0)) for edge in (length, width))
    x, y = (torch.linspace(-edge / 2, edge / 2, count + 1) for edge, count in counts)
    starts = torch.nn.functional.pad(torch.cartesian_prod(x, y), (0, 1))
    return starts, torch.tensor((0.0, 0.0, -1.0)).expand_as(starts)


def lidar(horizontal: Sequence[float], vertical: Sequence[float] = (0.0,)) -> Pattern:
    """Return rays from one point at all combinations of angles, by `vertical` first.

    Args:
        horizontal: angles from the frame's x axis to the left, rad.
        vertical: angles above the frame's x-y plane, rad.
    """
    angles = (torch.tensor(part, dtype=torch.float32) for part in (vertical, horizontal))
    up, left = torch.cartesian_prod(*angles).unbind(1)
    directions = torch.stack((up.cos() * left.cos(), up.cos() * left.sin(), up.sin()), dim=1)
    return torch.zeros_like(directions), directions


class Rays:
    """Measures distances from a body or site to the geoms of some groups, on both engines.

    Make it in `setup`; each call casts the rays. Geoms are where derived fields say: in
    `reset_worlds`, where the episode that has ended left them.

    Rays see no flex and no geom whose alpha is 0. On MuJoCo-Warp they see no SDF, either, and test
    every face of a mesh.
    """

    default_alignment: Alignment = "base"

    def __init__(
        self,
        env: Env[Any],
        pattern: Pattern,
        frame: str,
        *,
        offset: tuple[float, float, float],
        max_distance: float,
        miss: float,
        groups: Sequence[int] = (0,),
        alignment: Alignment | None = None,
    ) -> None:
        """Prepare the rays of an environment.

        Args:
            pattern: where rays start and point, such as `grid` or `lidar` returns.
            frame: the site, or else the body, that the rays move with.
            offset: of the pattern from the frame's origin, m.
            max_distance: from its start, beyond which a ray hits nothing, m.
            miss: what is returned for a ray that hits nothing.
            groups: the geom groups, of 0 to 5, that rays hit. A geom without `group` is in 0.
            alignment: whether offset and pattern turn with the frame ("base", the default), with
                its heading alone ("yaw"), or not at all ("world").

        Raises:
            UserError: there is no such frame or alignment; `max_distance` is not above 0; pattern
                or offset have other shapes; a ray points nowhere; `groups` has no geom, or one of
                the robot that the frame is part of.
        """
        self.sim = env.sim
        self.max_distance, self.miss = max_distance, miss
        alignment = alignment or self.default_alignment
        try:
            if alignment not in FOLLOWS:
                options = ", ".join(FOLLOWS)
                raise UserError(f"alignment is {alignment!r}; it must be one of: {options}.")
            if np.shape(offset) != (3,):
                raise UserError(f"offset is {offset!r}; it must be three numbers.")
            starts, directions = _check_pattern(pattern)
            lengths = directions.norm(dim=1, keepdim=True)
            if not max_distance > 0:
                raise UserError(f"max_distance is {max_distance}; it must be above 0.")
            if not (lengths > 0).all():
                raise UserError("a ray of its pattern has a direction of length 0.")
            body, self._position, self._axes = _find(self.sim, frame)
            self.groups = _check_groups(self.sim.model, body, groups)
        except UserError as error:
            kind = type(self).__name__
            raise UserError(f"{type(env).__name__}: {kind} on {frame!r}: {error}") from None
        self._follows = FOLLOWS[alignment]
        x, y, z = offset
        starts = starts + torch.tensor((x, y, z)) + ASIDE
        self._local = torch.stack((starts, directions / lengths)).unsqueeze(1).to(self._position)
        """Starts and directions of length 1, `(2, 1, rays, 3)`."""

    def __call__(self) -> torch.Tensor:
        """Return distances from the starts, `(num_envs, rays)`, float32, m."""
        _, _, distances, is_hit = self._cast()
        return torch.where(is_hit, distances, self.miss).float()

    def arrows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return arrows for `debug_vis` whose tips are where rays hit: start points and vectors,
        both `(num_envs, rays, 3)`, m. Vectors of rays that hit nothing are zero."""
        starts, directions, distances, is_hit = self._cast()
        vectors = ARROW * directions * is_hit.unsqueeze(2)
        return starts + directions * distances.unsqueeze(2) - vectors, vectors

    def _cast(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return starts and directions, `(num_envs, rays, 3)`, distances and whether they are those
        of hits, `(num_envs, rays)`."""
        axes = self._axes
        if self._follows is not None:
            yaw = torch.atan2(axes[:, 1, 0], axes[:, 0, 0]) * self._follows
            cos, sin, no, one = yaw.cos(), yaw.sin(), torch.zeros_like(yaw), torch.ones_like(yaw)
            axes = torch.stack((cos, -sin, no, sin, cos, no, no, no, one), dim=1).view(-1, 3, 3)
        # On a GPU, TF32 would round a product of matrices to three digits.
        x, y, z = (axes[:, None, :, i] * self._local[..., i : i + 1] for i in range(3))
        starts, directions = x + y + z
        starts += self._position.unsqueeze(1)
        distances = self.sim.rays(starts, directions, self.groups)
        return starts, directions, distances, (distances >= 0) & (distances <= self.max_distance)


class HeightScan(Rays):
    """Measures how high a body or site is above what is below it: Rays of a `grid`, which stays
    level and turns with the frame's heading.

    `offset` must be above all that is to be seen, and below a roof that is not to be seen: a ray
    does not see the surface of what it starts in.
    """

    default_alignment: Alignment = "yaw"

    def __call__(self) -> torch.Tensor:
        """Return the frame's height above where each ray hits, `(num_envs, rays)`, float32, m."""
        starts, directions, distances, is_hit = self._cast()
        hits = starts[..., 2] + directions[..., 2] * distances
        return torch.where(is_hit, self._position[:, 2:] - hits, self.miss).float()


def _check_pattern(pattern: object) -> tuple[torch.Tensor, torch.Tensor]:
    """Return starts and directions, float32 on the CPU; UserError if they are none."""
    match pattern:
        case [torch.Tensor() as starts, torch.Tensor() as directions]:
            if starts.shape == directions.shape == (len(starts), 3):
                return starts.float().cpu(), directions.float().cpu()
    raise UserError("its pattern must be two tensors, (rays, 3), as of `grid` or `lidar`.")


def _find(sim: Simulation, frame: str) -> tuple[int, torch.Tensor, torch.Tensor]:
    """Return the body of a frame, and views of its position and axes, `(num_envs, 3)` and
    `(num_envs, 3, 3)`."""
    model = sim.model
    sites = [model.site(i).name for i in range(model.nsite)]
    bodies = [model.body(i).name for i in range(model.nbody)]
    if frame and frame in sites:
        site = sites.index(frame)
        axes = sim.site_xmat[:, site].view(-1, 3, 3)
        return int(model.site_bodyid[site]), sim.site_xpos[:, site], axes
    if frame and frame in bodies:
        body = bodies.index(frame)
        return body, sim.xpos[:, body], sim.xmat[:, body].view(-1, 3, 3)
    known = (", ".join(filter(None, names)) or "none" for names in (sites, bodies))
    raise UserError("no such site or body. Sites: {}; bodies: {}.".format(*known))


def _check_groups(model: mujoco.MjModel, body: int, given: Sequence[int]) -> tuple[int, ...]:
    """Return the groups; raise UserError unless rays hit geoms of them, but none of the robot's."""
    groups = tuple(np.flatnonzero(group_flags(given)).tolist())
    has_material, alpha = model.geom_matid >= 0, model.geom_rgba[:, 3].copy()
    alpha[has_material] = model.mat_rgba[model.geom_matid[has_material], 3]
    group, root = model.geom_group.clip(0, mujoco.mjNGROUP - 1), model.body_rootid[body]
    is_own = (model.body_rootid[model.geom_bodyid] == root) & (root > 0)
    seen = (alpha > 0) & np.isin(group, groups)
    own, others = np.flatnonzero(seen & is_own), np.flatnonzero(seen & ~is_own)
    if not others.size:
        hittable = ", ".join(map(str, np.unique(group[~is_own & (alpha > 0)]))) or "none"
        raise UserError(f"no geom to hit is in the groups {groups}; there are some in: {hittable}.")
    if own.size:
        same = [_name(model, int(i)) for i in others if group[i] == group[own[0]]]
        like = f", as is {same[0]}" if same else ""
        raise UserError(
            f"rays would hit the robot: {_name(model, int(own[0]))} is in group {group[own[0]]}"
            f"{like}. Put all geoms of the robot into groups of their own, such as <geom "
            'group="2"/>, that are not in `groups`.'
        )
    return groups


def _name(model: mujoco.MjModel, geom: int) -> str:
    """Return how a message names a geom."""
    name, body = model.geom(geom).name, model.body(int(model.geom_bodyid[geom])).name
    return f"geom {name!r}" if name else f"geom {geom} of body {body!r}"
