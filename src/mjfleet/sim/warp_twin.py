"""Renders what MuJoCo's own engine simulates, by MuJoCo-Warp on the CPU. Runs in a worker."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import mujoco
import mujoco_warp as mjw
import torch
import warp as wp

from mjfleet.errors import UserError
from mjfleet.sim.renderer import Renderer
from mjfleet.sim.view import ImageKind, View
from mjfleet.sim.warp_model import expand_field, put_model, without_lacking
from mjfleet.sim.warp_start import start_warp
from mjfleet.utils.console import print_line
from mjfleet.utils.garbage_collection import no_garbage_collection

POSES = "geom_xpos", "geom_xmat", "cam_xpos", "cam_xmat", "light_xpos", "light_xdir"
VISUAL = (
    "geom_size", "geom_dataid", "geom_matid", "geom_rgba", "mat_", "cam_fovy", "cam_intrinsic",
    "cam_sensorsize", "light_",
)  # fmt: skip
"""How the names of the model's fields begin that an image depends on besides poses."""
NOT_VISUAL = ("light_pos", "light_dir", "light_bodyid")
"""What poses follow from."""
LEAST_WORLDS = 8
"""Worlds for which a thread, with its own copy of the model, is worth while."""


@cache
def announce() -> None:
    """Say once in a process what may take long."""
    print_line("cameras: the first rendering of a model compiles kernels, for up to 15 s")


class WarpTwin:
    """MuJoCo-Warp's copies of a model and of its worlds' poses, in as many parts as threads."""

    def __init__(self, model: mujoco.MjModel, num_worlds: int, num_threads: int) -> None:
        """Copy the model.

        Raises:
            UserError: the model uses something that MuJoCo-Warp lacks.
        """
        announce()
        start_warp("cpu")
        count = max(1, min(num_threads, num_worlds // LEAST_WORLDS))
        self._host = without_lacking(model)
        ends = [num_worlds * part // count for part in range(count + 1)]
        with wp.ScopedDevice("cpu"):
            self._parts = [Part(self._host, *pair) for pair in pairwise(ends)]
        self._threads = ThreadPoolExecutor(count) if count > 1 else None
        self._views: dict[View, list[tuple[Renderer, wp.Graph]]] = {}

    def images(
        self, view: View, field: Callable[[str], torch.Tensor], expanded: Mapping[str, torch.Tensor]
    ) -> dict[ImageKind, torch.Tensor]:
        """Render a view.

        Args:
            view: what is rendered.
            field: returns a field of the worlds by name, `(num_worlds, ...)`.
            expanded: fields of the model that differ between the worlds.
        """
        names = [*POSES, *(["flexvert_xpos"] if self._host.nflex else [])]
        with torch.inference_mode(False), wp.ScopedDevice("cpu"):
            fields = {name: field(name) for name in names}
            for part in self._parts:
                part.copy(fields, expanded)
            if view not in self._views:
                self._views[view] = [self._prepare(part, view, expanded) for part in self._parts]
        prepared = self._views[view]
        if self._threads:
            list(self._threads.map(wp.capture_launch, [graph for _, graph in prepared]))
        else:
            wp.capture_launch(prepared[0][1])
        found = [renderer.read() for renderer, _ in prepared]
        return {kind: torch.cat([images[kind] for images in found]) for kind in view.kinds}

    def _prepare(self, part: "Part", view: View, expanded: Mapping[str, Any]) -> Any:
        renderer = Renderer(self._host, part.model, part.data, view, expanded)
        with no_garbage_collection(), wp.ScopedCapture() as capture:
            renderer.render()
        return renderer, capture.graph


class Part:
    """Some neighbouring worlds, on warp's current device."""

    def __init__(self, host: mujoco.MjModel, start: int, stop: int) -> None:
        self._rows, count = slice(start, stop), stop - start
        remedy = "Images need a model that it can take; rays see any."
        self.model = put_model(host, "render", remedy)
        sizes = {"nworld": count, "nconmax": 1, "njmax": 1}
        self.data = mjw.put_data(host, mujoco.MjData(host), **sizes)
        self._fields: dict[str, torch.Tensor] = {}

    def copy(self, poses: Mapping[str, torch.Tensor], expanded: Mapping[str, torch.Tensor]) -> None:
        """Copy poses, and fields of the model that images depend on.

        Raises:
            UserError: MuJoCo-Warp has such a field for all worlds together.
        """
        visual = (name for name in expanded if name.startswith(VISUAL) and name not in NOT_VISUAL)
        for name, values in ({**poses, **{name: expanded[name] for name in visual}}).items():
            rows = values[self._rows]
            if name not in self._fields:
                self._fields[name] = self._find(name, len(rows), is_pose=name in poses)
            own = self._fields[name]
            own.copy_(rows.view(own.shape))

    def _find(self, name: str, count: int, is_pose: bool) -> torch.Tensor:
        if is_pose:
            return wp.to_torch(getattr(self.data, name))
        try:
            return expand_field(self.model, name, count)
        except ValueError as error:
            raise UserError(f"images cannot show {name!r} of each world: {error}.") from None
