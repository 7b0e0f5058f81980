"""Draws a recording as an MP4 video. Runs in the child process of render_process.py."""

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
MAX_RATE = 30  # Pictures per second, about: without a GPU, each takes a while.
SUPERSAMPLING = 2
"""Pixels drawn for a pixel of the video, each way: smooth edges, at less cost without a GPU than
OpenGL's own multisampling."""
ARROW_COLOURS = ((60, 200, 80), (60, 130, 250), (250, 170, 40), (230, 60, 170))
MIN_ARROW = 1e-3  # m; shorter arrows are left out.
FONT = ImageFont.load_default(14)


def write_video(
    recording: StateRecording, path: Path, after_each: Callable[[float], object]
) -> None:
    """Write a recording as H.264 in real time, whole or not at all.

    `after_each` is called after each picture, with the share that is done.
    """
    every = max(1, round(1 / (MAX_RATE * recording.step_dt)))
    rate = Fraction(1 / (every * recording.step_dt)).limit_denominator(1000)
    video = io.BytesIO()
    with av.open(video, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate, options={"crf": "24"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        count = len(range(0, len(recording.steps["time"]), every))
        for number, picture in enumerate(pictures(recording, every), start=1):
            container.mux(stream.encode(av.VideoFrame.from_image(picture)))
            after_each(number / count)
        container.mux(stream.encode())
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, lambda file: file.write(video.getbuffer()))


def pictures(recording: StateRecording, every: int) -> Iterator[Image.Image]:
    """Yield a picture of each `every`th step: environments side by side, times and returns."""
    times, rewards = recording.steps["time"], recording.steps["reward"]
    returns = returns_so_far(times, rewards, recording.step_dt)
    steps, num_envs = times.shape
    across = 1 if num_envs == 1 else 2
    width, height = WIDTH // across, HEIGHT // across
    names = [name for name in recording.steps if name.startswith(ARROW)]
    stage = _Stage(recording, names, across)
    for step in range(0, steps, every):
        picture = Image.new("RGB", (WIDTH, HEIGHT))
        pen = ImageDraw.Draw(picture)
        for env in range(num_envs):
            left, top = env % across * width, env // across * height
            picture.paste(stage.picture(step, env), (left, top))
            caption = f"{times[step, env]:.1f} s"
            if np.isfinite(returns[step, env]):
                caption += f"   return {returns[step, env]:.4g}"
            _write(pen, caption, left + 8, top + 6)
        x = _write(pen, recording.title, 8, HEIGHT - 22)
        for name, colour in zip(names, ARROW_COLOURS, strict=False):
            x = _write(pen, name.removeprefix(ARROW), x + 20, HEIGHT - 22, colour)
        yield picture


def _write(
    pen: ImageDraw.ImageDraw, text: str, x: float, y: float, colour: Colour = (255, 255, 255)
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


class _Stage:
    """A model, its renderer, and the camera."""

    def __init__(self, recording: StateRecording, arrows: list[str], across: int) -> None:
        self._steps, self._arrows = recording.steps, arrows
        assets = {"model.mjb": recording.model.tobytes()}
        self._model = model = mujoco.MjModel.from_binary_path("model.mjb", assets)
        self._data = mujoco.MjData(model)
        width, height = SUPERSAMPLING * WIDTH // across, SUPERSAMPLING * HEIGHT // across
        model.vis.global_.offwidth, model.vis.global_.offheight = width, height
        # Invisible in pictures of this size, and without a GPU it saves a third of the time.
        quality = model.vis.quality
        quality.shadowsize = min(quality.shadowsize, 2048)
        quality.offsamples, quality.numslices, quality.numstacks = 0, 16, 8
        self._renderer = mujoco.Renderer(model, height, width)
        self._put(0, 0)
        self._camera, self._size = _camera(model, self._data)

    def picture(self, step: int, env: int) -> Image.Image:
        """Draw an environment at the beginning of a step."""
        self._put(step, env)
        self._renderer.update_scene(self._data, self._camera)
        for name, colour in zip(self._arrows, ARROW_COLOURS, strict=False):
            start, along = self._steps[name][step, env].astype(float)
            self._add_arrow(start, along, colour)
        return Image.fromarray(self._renderer.render()).reduce(SUPERSAMPLING)

    def _put(self, step: int, env: int) -> None:
        for name in ("time", "qpos", "mocap_pos", "mocap_quat"):
            if name in self._steps:
                setattr(self._data, name, self._steps[name][step, env])
        mujoco.mj_fwdPosition(self._model, self._data)

    def _add_arrow(self, start: np.ndarray, along: np.ndarray, colour: Colour) -> None:
        """Add an arrow to the scene, if it has room for one."""
        scene = self._renderer.scene
        if np.linalg.norm(along) < MIN_ARROW or scene.ngeom == scene.maxgeom:
            return
        geom, kind = scene.geoms[scene.ngeom], mujoco.mjtGeom.mjGEOM_ARROW
        rgba = np.array([*colour, 255], np.float32) / 255
        mujoco.mjv_initGeom(geom, kind, np.zeros(3), np.zeros(3), np.zeros(9), rgba)
        mujoco.mjv_connector(geom, kind, 0.045 * self._size, start, start + along)
        scene.ngeom += 1


def _camera(model: mujoco.MjModel, data: mujoco.MjData) -> tuple[mujoco.MjvCamera | int, float]:
    """Return a camera, and the size of what it is to show, m.

    A body that moves freely is followed. Otherwise this is the model's first camera that is fixed
    in the world, or MuJoCo's free camera, which sees the whole model.
    """
    # Among several bodies, the one with the most degrees of freedom is the one that is trained.
    root = int(np.bincount(model.body_rootid[model.dof_bodyid]).argmax())
    joint = model.body_jntadr[root]
    if joint < 0 or model.jnt_type[joint] != mujoco.mjtJoint.mjJNT_FREE:
        standing = np.flatnonzero(model.cam_bodyid == 0)
        return (int(standing[0]) if len(standing) else -1), model.stat.extent / 2
    own = model.body_rootid[model.geom_bodyid] == root
    reach = np.linalg.norm(data.geom_xpos[own] - data.subtree_com[root], axis=1)
    size = float((reach + model.geom_rbound[own]).max())
    camera = mujoco.MjvCamera()
    camera.type = mujoco.mjtCamera.mjCAMERA_TRACKING
    camera.trackbodyid = root
    camera.distance, camera.azimuth, camera.elevation = 3.5 * size, 130, -20
    return camera, size
