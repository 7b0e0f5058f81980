"""Draws a recording as an MP4 video, in the child process of render_process.py.

Viewers draw arrows, and follow a robot, by the same functions.
"""

import io
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import mujoco
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mjfleet.utils.atomic_write import write_atomically
from mjfleet.video.state_recording import ARROW, StateRecording

Colour = tuple[int, int, int]
WIDTH, HEIGHT = 640, 480
SUPERSAMPLING = 2
"""Pixels drawn for a pixel of the video, each way: smooth edges, at less cost without a GPU than
OpenGL's own multisampling."""
WHITE = 255, 255, 255
ARROW_COLOURS: tuple[Colour, ...] = ((60, 200, 80), (60, 130, 250), (250, 170, 40), (230, 60, 170))
MIN_ARROW = 1e-3  # m; shorter arrows are left out.
FONT = ImageFont.load_default(14)
EDGE: Any = {"stroke_width": 1, "stroke_fill": (0, 0, 0)}  # Legible on any background.


def write_video(recording: StateRecording, path: Path) -> None:
    """Write a recording as H.264, whole or not at all."""
    rate = Fraction(recording.rate).limit_denominator(1000)
    video = io.BytesIO()
    with av.open(video, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate, options={"crf": "24"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for picture in pictures(recording):
            container.mux(stream.encode(av.VideoFrame.from_image(picture)))
        container.mux(stream.encode())
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, lambda file: file.write(video.getbuffer()))


def pictures(recording: StateRecording) -> Iterator[Image.Image]:
    """Yield pictures of environments side by side, with the seconds of their episodes."""
    times = recording.steps["time"]
    across = 1 if times.shape[1] == 1 else 2
    width, height = WIDTH // across, HEIGHT // across
    arrows = [name for name in recording.steps if name.startswith(ARROW)]
    stage = Stage(recording, arrows, SUPERSAMPLING * width, SUPERSAMPLING * height)
    captions: list[tuple[str, Colour]] = [(recording.title, WHITE)]
    captions += zip((name.removeprefix(ARROW) for name in arrows), ARROW_COLOURS, strict=False)
    for step in range(len(times)):
        picture = Image.new("RGB", (WIDTH, HEIGHT))
        pen = ImageDraw.Draw(picture)
        for env, time in enumerate(times[step]):
            left, top = env % across * width, env // across * height
            picture.paste(stage.picture(step, env).reduce(SUPERSAMPLING), (left, top))
            pen.text((left + 8, top + 6), f"{time:.1f} s", WHITE, FONT, **EDGE)
        x = 8.0
        for text, colour in captions:
            pen.text((x, HEIGHT - 22), text, colour, FONT, **EDGE)
            x += 12 + pen.textlength(text, FONT)
        yield picture


class Stage:
    """A model with its renderer and a camera."""

    def __init__(
        self, recording: StateRecording, arrows: list[str], width: int, height: int
    ) -> None:
        self._steps, self._arrows = recording.steps, arrows
        assets = {"model.mjb": recording.model}
        self._model = model = mujoco.MjModel.from_binary_path("model.mjb", assets)
        self._data = mujoco.MjData(model)
        model.vis.global_.offwidth, model.vis.global_.offheight = width, height
        # Invisible in pictures of this size, and without a GPU it saves a third of the time.
        quality = model.vis.quality
        quality.shadowsize = min(quality.shadowsize, 2048)
        quality.offsamples, quality.numslices, quality.numstacks = 0, 16, 8
        self._renderer = mujoco.Renderer(model, height, width)
        self._size = model.stat.extent / 2  # Of what is shown, m.
        # The model's first camera that is fixed in the world, or the one that sees all of it.
        fixed = np.flatnonzero(model.cam_bodyid == 0)
        self._camera: Any = int(fixed[0]) if len(fixed) else -1
        if (root := floating_body(model)) is not None:
            self._follow(root)

    def _follow(self, root: int) -> None:
        """Have the camera follow a robot that moves freely, at a distance that shows all of it."""
        model, data = self._model, self._data
        self._place(0, 0)
        own = model.body_rootid[model.geom_bodyid] == root
        reach = np.linalg.norm(data.geom_xpos[own] - data.subtree_com[root], axis=1)
        self._size = float((reach + model.geom_rbound[own]).max())
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_TRACKING
        self._camera.trackbodyid, self._camera.distance = root, 3.5 * self._size
        self._camera.azimuth, self._camera.elevation = 130, -20

    def picture(self, step: int, env: int) -> Image.Image:
        """Draw an environment."""
        self._place(step, env)
        self._renderer.update_scene(self._data, self._camera)
        for name, colour in zip(self._arrows, ARROW_COLOURS, strict=False):
            start, vector = self._steps[name][step, env].astype(float)
            add_arrow(self._renderer.scene, start, vector, colour, 0.045 * self._size)
        return Image.fromarray(self._renderer.render())

    def _place(self, step: int, env: int) -> None:
        for name in self._steps.keys() & {"time", "qpos", "mocap_pos", "mocap_quat"}:
            setattr(self._data, name, self._steps[name][step, env])
        mujoco.mj_fwdPosition(self._model, self._data)


def floating_body(model: mujoco.MjModel) -> int | None:
    """Return the root body with the most degrees of freedom, the robot's, if it moves freely."""
    root = int(np.bincount(model.body_rootid[model.dof_bodyid]).argmax())
    joint = model.body_jntadr[root]
    is_free = joint >= 0 and model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE
    return root if is_free else None


def add_arrow(
    scene: mujoco.MjvScene, start: np.ndarray, vector: np.ndarray, colour: Colour, width: float
) -> None:
    """Add an arrow to a scene, if there is room; lengths in m."""
    if np.linalg.norm(vector) < MIN_ARROW or scene.ngeom == scene.maxgeom:
        return
    geom, kind = scene.geoms[scene.ngeom], mujoco.mjtGeom.mjGEOM_ARROW
    rgba = np.array([*colour, 255], np.float32) / 255
    mujoco.mjv_initGeom(geom, kind, np.zeros(3), np.zeros(3), np.zeros(9), rgba)
    mujoco.mjv_connector(geom, kind, width, start, start + vector)
    scene.ngeom += 1
