"""Draws a recording as an MP4 video, in the child process of render_process.py.

Viewers draw arrows, and follow a robot, by the same functions.
"""

import io
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

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


def write_video(recording: StateRecording, path: Path, after_each: Callable[[], object]) -> None:
    """Write a recording as H.264, whole or not at all; call `after_each` after each picture."""
    rate = Fraction(1 / (recording.shown.step * recording.step_dt)).limit_denominator(1000)
    video = io.BytesIO()
    with av.open(video, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate, options={"crf": "24"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for picture in pictures(recording):
            container.mux(stream.encode(av.VideoFrame.from_image(picture)))
            after_each()
        container.mux(stream.encode())
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, lambda file: file.write(video.getbuffer()))


def pictures(recording: StateRecording) -> Iterator[Image.Image]:
    """Yield pictures of environments side by side, with times and returns."""
    times = recording.steps["time"]
    returns = returns_so_far(times, recording.steps["reward"], recording.step_dt)
    across = 1 if times.shape[1] == 1 else 2
    width, height = WIDTH // across, HEIGHT // across
    arrows = [name for name in recording.steps if name.startswith(ARROW)]
    stage = Stage(recording, arrows, SUPERSAMPLING * width, SUPERSAMPLING * height)
    captions: list[tuple[str, Colour]] = [(recording.title, WHITE)]
    captions += zip((name.removeprefix(ARROW) for name in arrows), ARROW_COLOURS, strict=False)
    for step in recording.shown:
        picture = Image.new("RGB", (WIDTH, HEIGHT))
        pen = ImageDraw.Draw(picture)
        for env, (time, total) in enumerate(zip(times[step], returns[step], strict=True)):
            left, top = env % across * width, env // across * height
            picture.paste(stage.picture(step, env).reduce(SUPERSAMPLING), (left, top))
            known = f"   return {total:.4g}" if np.isfinite(total) else ""
            _write(pen, f"{time:.1f} s{known}", left + 8, top + 6)
        x = 8.0
        for text, colour in captions:
            x = 20 + _write(pen, text, x, HEIGHT - 22, colour)
        yield picture


def _write(
    pen: ImageDraw.ImageDraw, text: str, x: float, y: float, colour: Colour = WHITE
) -> float:
    """Write from (x, y), in pixels, with an edge, legible on any background; return the end's x."""
    pen.text((x, y), text, colour, FONT, stroke_width=1, stroke_fill=(0, 0, 0))
    return x + pen.textlength(text, FONT)


def returns_so_far(times: np.ndarray, rewards: np.ndarray, step_dt: float) -> np.ndarray:
    """Return the sums of rewards before each step of an episode, `(steps, envs)`.

    NaN where the episode began before the recording.
    """
    begins, returns, total = times < step_dt / 2, np.empty(times.shape), np.nan
    for step, reward in enumerate(rewards):
        returns[step] = np.where(begins[step], 0.0, total)
        total = returns[step] + reward
    return returns


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
        self._place(0, 0)
        self._camera, self._size = _camera(model, self._data)

    def picture(self, step: int, env: int) -> Image.Image:
        """Draw an environment at the beginning of a step."""
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


def _camera(model: mujoco.MjModel, data: mujoco.MjData) -> tuple[mujoco.MjvCamera | int, float]:
    """Return a camera, and the size of what it is to show, m.

    A robot that moves freely is followed. Otherwise this is the model's first camera that is fixed
    in the world, or MuJoCo's free camera, which sees the whole model.
    """
    if (root := floating_body(model)) is None:
        fixed = np.flatnonzero(model.cam_bodyid == 0)
        return (int(fixed[0]) if len(fixed) else -1), model.stat.extent / 2
    own = model.body_rootid[model.geom_bodyid] == root
    reach = np.linalg.norm(data.geom_xpos[own] - data.subtree_com[root], axis=1)
    size = float((reach + model.geom_rbound[own]).max())
    camera = mujoco.MjvCamera()
    camera.type, camera.trackbodyid = mujoco.mjtCamera.mjCAMERA_TRACKING, root
    camera.distance, camera.azimuth, camera.elevation = 3.5 * size, 130, -20
    return camera, size


def floating_body(model: mujoco.MjModel) -> int | None:
    """Return the robot's root body if it moves freely.

    Among several bodies, the one with the most degrees of freedom is the robot's.
    """
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
