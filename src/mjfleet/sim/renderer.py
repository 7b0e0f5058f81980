"""Renders a camera of many worlds by MuJoCo-Warp, on a GPU or the CPU. Runs in a worker."""

from collections.abc import Collection

import mujoco
import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp

from mjfleet.sim.view import ImageKind, View

LENS = {"cam_fovy", "cam_intrinsic"}
"""Fields on which the directions of a camera's pixels depend."""


class Renderer:
    """The newest images of one view, of all worlds of a model on warp's current device."""

    def __init__(
        self,
        host: mujoco.MjModel,
        model: mjw.Model,
        data: mjw.Data,
        view: View,
        expanded: Collection[str],
    ) -> None:
        """Allocate the images, and compile the kernels by rendering once.

        Args:
            host: the model.
            model: the model on the device.
            data: where geoms, cameras and lights are.
            view: what is rendered.
            expanded: names of the model's fields that differ between worlds.
        """
        self._model, self._data, self._view = model, data, view
        kinds = view.kinds
        context = mjw.create_render_context(
            host,
            nworld=data.nworld,
            cam_active=[view.camera],
            cam_res=(view.width, view.height),
            render_rgb="rgb" in kinds,
            render_depth="depth" in kinds,
            render_seg="segmentation" in kinds,
            use_textures="rgb" in kinds,
            render_skybox="rgb" in kinds,
            enabled_geom_groups=np.flatnonzero(view.groups).tolist(),
            use_precomputed_rays=LENS.isdisjoint(expanded),
        )
        context.zfar = 0.0  # Whoever reads the images says how far they reach.
        self._context = context
        shape = data.nworld, view.height, view.width
        arrays = {"depth": context.depth_data, "segmentation": context.seg_data}
        live = {kind: wp.to_torch(arrays[kind]) for kind in kinds if kind in arrays}
        self._live = {kind: pixels.view(*shape, *pixels.shape[2:]) for kind, pixels in live.items()}
        if "rgb" in kinds:  # Each pixel is a number whose bytes are blue, green, red and alpha.
            pixels = wp.to_torch(context.rgb_data).view(torch.uint8)
            self._live["rgb"] = pixels.view(*shape, 4)
        self.render()

    def render(self) -> None:
        """Render all worlds. May be captured as a graph."""
        mjw.refit_bvh(self._model, self._data, self._context)
        mjw.render(self._model, self._data, self._context)

    def read(self) -> dict[ImageKind, torch.Tensor]:
        """Return copies of the newest images, as `Simulation.images` does."""
        found: dict[ImageKind, torch.Tensor] = {}
        for kind in self._view.kinds:
            pixels = self._live[kind]
            if kind == "depth":
                found[kind] = torch.where(pixels > 0, pixels, torch.inf)
            else:
                found[kind] = pixels[..., :3].flip(3) if kind == "rgb" else pixels.clone()
        return found
