"""What is rendered of each world: a camera, a size, kinds of images. Imports no engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import mujoco
import numpy as np

from mjfleet.errors import UserError

ImageKind = Literal["depth", "rgb", "segmentation"]


PIXEL_BYTES = {"depth": 4 + 4, "rgb": 4 + 3, "segmentation": 8 + 8}
"""What a pixel takes in the renderer, and in the images that are returned."""
GEOM_BYTES = 28 + 84
"""What a geom takes in the tree that rays search: in mujoco_warp's arrays, and measured in Warp's
BVH."""


@dataclass(frozen=True)
class View:
    """Images of one camera, as `Simulation.images` takes them."""

    camera: int
    width: int
    height: int
    kinds: tuple[ImageKind, ...]
    groups: tuple[bool, ...]
    """For each of MuJoCo's geom groups whether its geoms are seen."""
    num_geoms: int
    """How many are."""

    @property
    def nbytes(self) -> int:
        """The least that a world takes in the renderer and in its images."""
        pixels = self.width * self.height * sum(PIXEL_BYTES[kind] for kind in self.kinds)
        return pixels + self.num_geoms * GEOM_BYTES


def make_view(
    model: mujoco.MjModel,
    camera: str,
    width: int,
    height: int,
    kinds: Sequence[ImageKind],
    groups: tuple[bool, ...],
) -> View:
    """Return a view of a model.

    Raises:
        UserError: the model has no such camera, a size is no whole number above 0, `kinds` are none
            or unknown, or there is no geom in `groups`.
    """
    names = [model.camera(i).name for i in range(model.ncam)]
    if not camera or camera not in names:  # MuJoCo's own search may crash for None.
        known = ", ".join(filter(None, names)) or "none, see add_camera"
        raise UserError(f"no camera {camera!r}; the model has: {known}.")
    for what, size in (("width", width), ("height", height)):
        if not isinstance(size, int) or size < 1:
            raise UserError(f"{what} is {size!r}; it must be a whole number of pixels above 0.")
    check_kinds(kinds, get_args(ImageKind))
    seen = np.array(groups)[model.geom_group.clip(0, len(groups) - 1)]
    if not seen.any():
        used = ", ".join(map(str, np.unique(model.geom_group))) or "none"
        raise UserError(f"no geom to see is in the groups {groups}; there are some in: {used}.")
    chosen = tuple(dict.fromkeys(kinds))
    return View(names.index(camera), width, height, chosen, groups, int(seen.sum()))


def check_kinds(kinds: Sequence[str], known: Sequence[str]) -> None:
    """Raise UserError if kinds of images are none, or not among the known ones."""
    if isinstance(kinds, str) or not kinds or not {*kinds} <= {*known}:
        raise UserError(f"kinds is {kinds!r}; it must be some of {known}, such as ('depth',).")
