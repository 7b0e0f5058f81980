"""A camera that a policy sees with, and what makes its images like a real one's. Runs in a worker.

Images are rendered by MuJoCo-Warp, on both engines: see `Simulation.images`.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import mujoco
import numpy as np
import torch

from mjfleet.env import Env
from mjfleet.errors import UserError
from mjfleet.sim import ImageKind, group_flags
from mjfleet.sim.view import check_kinds, make_view

Kind = Literal["depth", "distance", "rgb", "segmentation"]
Images = dict[Kind, torch.Tensor]
GEOM = int(mujoco.mjtObj.mjOBJ_GEOM)


class Camera:
    """Renders a camera of the model in all environments, on both engines.

    Make it in `setup` and call it in `observe`: an environment that was reset then shows its new
    pose. Calls in one step render once.
    """

    def __init__(
        self,
        env: Env[Any],
        name: str,
        width: int,
        height: int,
        kinds: Sequence[Kind] = ("depth",),
        *,
        every: int = 1,
        near: float = 0.0,
        far: float,
        groups: Sequence[int] = (0, 1, 2),
    ) -> None:
        """Prepare the images of an environment.

        Args:
            name: of a camera in the model; `add_camera` adds one.
            width: of an image, pixels.
            height: likewise.
            kinds: "depth" is the distance from the camera's plane, "distance" that along the ray of
                a pixel, "rgb" a picture, "segmentation" the number of the geom that is seen.
            every: steps between two renderings of all environments. The images between are kept; an
                environment that is reset meanwhile sees nothing until the next rendering.
            near: what is nearer reads `near`, m.
            far: what is farther, or nothing at all, reads `far`, m.
            groups: the geom groups, of 0 to 5, that are seen.

        Raises:
            UserError: the model has no such camera, or an argument is not as above.
        """
        self.env, self.name, self.width, self.height = env, name, width, height
        self.near, self.far, self._every, self._groups = near, far, every, groups
        where = f"{type(env).__name__}: Camera {name!r}"
        try:
            check_kinds(kinds, get_args(Kind))
            if not (isinstance(every, int) and every > 0):
                raise UserError(f"every is {every!r}; it must be a whole number of steps above 0.")
            if not 0 <= near < far < math.inf:
                text = "they must be numbers, 0 <= near < far"
                raise UserError(f"near is {near} and far {far}; {text}.")
            self.kinds: tuple[Kind, ...] = tuple(kinds)
            self._rendered: list[ImageKind] = [
                "depth" if kind == "distance" else kind for kind in self.kinds
            ]
            size = name, width, height
            make_view(env.sim.model, *size, self._rendered, group_flags(groups))
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        slopes = pixel_slopes(env.sim.model, name, width, height)
        self._squares = slopes.square().sum(dim=0).to(env.device, torch.float32)
        self._kept: Images = {}
        nothing = {"rgb": 0.0, "segmentation": -1.0}
        for kind in self.kinds if every > 1 else ():
            channels, dtype = (3, torch.uint8) if kind == "rgb" else (1, torch.float32)
            dtype = torch.int32 if kind == "segmentation" else dtype
            size = channels, height, width
            self._kept[kind] = env.add_state(
                f"camera.{kind}", *size, dtype=dtype, reset=nothing.get(kind, far)
            )
        env.policy_cameras.append(self)

    def __call__(self) -> Images:
        """Return images by kind, `(num_envs, channels, height, width)`: "depth" and "distance" in
        one channel of float32, m; "rgb" in three of uint8; "segmentation" in one of int32, -1 where
        nothing is seen. With `every`, they are state, which the next rendering overwrites."""
        if not self._kept:
            return self._look()
        if self.env.step_count % self._every == 0:
            for kind, image in self._look().items():
                self._kept[kind].copy_(image)
        return dict(self._kept)

    def pictures(self) -> torch.Tensor:
        """Return what the first kind shows as colours for people, `(num_envs, height, width, 3)`,
        uint8: of distances, what is near is light; each geom has a colour of its own."""
        kind, image = next(iter(self().items()))
        if kind == "rgb":
            return image.permute(0, 2, 3, 1)
        pixels = image.squeeze(1).unsqueeze(3)
        if kind == "segmentation":
            shares = pixels.new_tensor((97, 57, 23)) * pixels % 192 + 64
            return torch.where(pixels < 0, 0, shares).to(torch.uint8)
        light = 255.0 * (self.far - pixels) / (self.far - self.near)
        return light.to(torch.uint8).expand(-1, -1, -1, 3)

    def intrinsics(self) -> dict[str, float]:
        """Return focal lengths and principal point in the model, pixels, as OpenCV has them: `fx`,
        `fy`, and `cx`, `cy` from the left upper corner. A camera without perspective: none."""
        if _is_orthographic(self.env.sim.model, self.name):
            return {}
        (left, right), (top, bottom) = _edges(
            self.env.sim.model, self.name, self.width, self.height
        )
        fx, fy = self.width / (right - left), self.height / (top - bottom)
        return {"fx": fx, "fy": fy, "cx": -left * fx, "cy": top * fy}

    def describe(self) -> dict[str, Any]:
        """Return what a robot's runtime has to know about the camera, as JSON data: its lens, and
        where it is in the frame of its body."""
        camera, model = self.env.sim.model.camera(self.name), self.env.sim.model
        return {
            "name": self.name,
            "width": self.width,
            "height": self.height,
            "kinds": list(self.kinds),
            "near": self.near,
            "far": self.far,
            "rate": round(1 / (self.env.step_dt * self._every), 6),
            "body": model.body(int(model.cam_bodyid[camera.id])).name,
            "pos": camera.pos.tolist(),
            "quat": camera.quat.tolist(),
            "intrinsics": self.intrinsics(),
        }

    def _look(self) -> Images:
        size = self.name, self.width, self.height
        found, images = self.env.sim.images(*size, self._rendered, self._groups), Images()
        for kind in self.kinds:
            if kind == "rgb":
                images[kind] = found["rgb"].permute(0, 3, 1, 2)
            elif kind == "segmentation":
                number, type_ = found["segmentation"].unbind(3)
                images[kind] = torch.where(type_ == GEOM, number, -1)[:, None]
            else:
                depth = found["depth"].unsqueeze(1)
                depth = depth * self._lengths() if kind == "distance" else depth
                images[kind] = depth.clamp(self.near, self.far)
        return images

    def _lengths(self) -> torch.Tensor:
        """Return the distance along each ray by depth, `(1 or num_envs, 1, height, width)`."""
        squares = self._squares
        if (fovy := self.env.sim.expanded.get("cam_fovy")) is not None:
            model, camera = self.env.sim.model, self.env.sim.model.camera(self.name).id
            own = torch.tan(torch.deg2rad(fovy[:, camera].float() / 2))
            of_model = math.tan(math.radians(float(model.cam_fovy[camera]) / 2))
            is_lens = not model.cam_sensorsize[camera, 1]  # Otherwise the field has no effect.
            ratio = (own / of_model).square() if is_lens else torch.ones_like(own)
            squares = squares * ratio.view(-1, 1, 1, 1)
        return (1.0 + squares).sqrt().view(-1, 1, self.height, self.width)


def add_camera(
    spec: mujoco.MjSpec,
    name: str,
    body: str = "world",
    *,
    pos: tuple[float, float, float] = (0.0, 0.0, 0.0),
    quat: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0),
    fovy: float = 45.0,
) -> None:
    """Add a camera to a model, in `make_model`.

    Args:
        spec: the model, before it is compiled.
        name: of the camera.
        body: that it is fixed to.
        pos: place in the body's frame, m.
        quat: orientation there, (w, x, y, z). A camera looks along its -z, with y upwards.
        fovy: vertical field of view, degrees.

    Raises:
        UserError: there is no such body, the name is taken, `pos` is not three numbers, `quat` is
            not four or is 0, or `fovy` is not between 0 and 180.
    """
    what = f"add_camera({name!r})"
    if (owner := spec.body(body)) is None:
        names = ", ".join(one.name for one in spec.bodies if one.name)
        raise UserError(f"{what}: no body {body!r}; the model has: {names}.")
    if not name or spec.camera(name) is not None:
        raise UserError(f"{what}: a camera needs a name of its own.")
    if not 0 < fovy < 180:
        raise UserError(f"{what}: fovy is {fovy}; it must be between 0 and 180 degrees.")
    if np.shape(pos) != (3,) or np.shape(quat) != (4,) or not np.any(quat):
        text = "they must be three numbers, and four, not all of them 0"
        raise UserError(f"{what}: pos is {pos!r} and quat {quat!r}; {text}.")
    owner.add_camera(name=name, pos=pos, quat=quat, fovy=fovy)


def pixel_slopes(model: mujoco.MjModel, name: str, width: int, height: int) -> torch.Tensor:
    """Return how far the rays of pixels go to the right and up for each metre of depth, `(2,
    height, width)`; zeros without perspective."""
    if _is_orthographic(model, name):
        return torch.zeros(2, height, width, dtype=torch.float64)
    (left, right), (top, bottom) = _edges(model, name, width, height)
    x = left + (right - left) * (torch.arange(width, dtype=torch.float64) + 0.5) / width
    y = top + (bottom - top) * (torch.arange(height, dtype=torch.float64) + 0.5) / height
    return torch.stack(torch.meshgrid(x, y, indexing="xy"))


def _is_orthographic(model: mujoco.MjModel, name: str) -> bool:
    projection = model.cam_projection[model.camera(name).id]
    return bool(projection == mujoco.mjtProjection.mjPROJ_ORTHOGRAPHIC)


def _edges(
    model: mujoco.MjModel, name: str, width: int, height: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return where an image begins and ends at a depth of 1 m: left and right, top and bottom."""
    camera, aspect = model.camera(name).id, width / height
    size = model.cam_sensorsize[camera].astype(np.float64)
    if not size[1]:
        half = math.tan(math.radians(float(model.cam_fovy[camera]) / 2))
        return (-half * aspect, half * aspect), (half, -half)
    # A sensor of another shape is cut, at both sides alike.
    across, up = min(size[0], size[1] * aspect), min(size[1], size[0] / aspect)
    fx, fy, cx, cy = model.cam_intrinsic[camera].tolist()
    return ((cx - across / 2) / fx, (cx + across / 2) / fx), (
        (up / 2 - cy) / fy,
        -(up / 2 + cy) / fy,
    )
