"""Draws a recording as an MP4 video; viewers use its arrows and its choice of the robot."""

import io
from collections.abc import Iterator
from fractions import Fraction
from itertools import cycle
from pathlib import Path
from typing import Any

import av
import mujoco
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mjfleet.utils.atomic_write import write_atomically
from mjfleet.video.state_recording import ARROW, GHOST, SEEN, StateRecording

Colour = tuple[int, int, int]
WIDTH, HEIGHT = 640, 480
WHITE = 255, 255, 255
ARROW_COLOURS: tuple[Colour, ...] = ((60, 200, 80), (60, 130, 250), (250, 170, 40), (230, 60, 170))
GHOST_COLOUR = 0.95, 0.6, 0.2, 0.35  # Red, green, blue, opacity.
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
    steps, times = recording.steps, recording.steps["time"]
    across = 1 if times.shape[1] == 1 else 2
    width, height = WIDTH // across, HEIGHT // across
    model = mujoco.MjModel.from_binary_path("model.mjb", {"model.mjb": recording.model})
    size, quality = model.vis.global_, model.vis.quality
    size.offwidth, size.offheight = width, height
    # Invisible in pictures of this size, and without a GPU it saves half of the time.
    quality.shadowsize = min(quality.shadowsize, 2048)
    quality.numslices, quality.numstacks = 16, 8
    data, camera, ghost = mujoco.MjData(model), _camera(model), mujoco.MjData(model)
    renderer = mujoco.Renderer(model, height, width)
    names = [name for name in steps if name.startswith(ARROW)]
    arrows = list(zip(names, cycle(ARROW_COLOURS), strict=False))
    captions = [(name.removeprefix(ARROW), colour) for name, colour in arrows]
    for step, seconds in enumerate(times):
        picture = Image.new("RGB", (WIDTH, HEIGHT))
        pen = ImageDraw.Draw(picture)
        for env, time in enumerate(seconds):
            for name in steps.keys() & {"time", "qpos", "mocap_pos", "mocap_quat"}:
                setattr(data, name, steps[name][step, env])
            mujoco.mj_fwdPosition(model, data)
            renderer.update_scene(data, camera)
            if GHOST in steps:
                add_ghost(renderer.scene, model, ghost, steps[GHOST][step, env])
            for name, colour in arrows:
                start, vector = steps[name][step, env].astype(float)
                add_arrows(renderer.scene, start, vector, colour, 0.02 * model.stat.extent)
            left, top = env % across * width, env // across * height
            picture.paste(Image.fromarray(renderer.render()), (left, top))
            pen.text((left + 8, top + 6), f"{time:.1f} s", WHITE, FONT, **EDGE)
            if SEEN in steps:
                seen = enlarged(steps[SEEN][step, env], width // 3)
                picture.paste(Image.fromarray(seen), (left + width - seen.shape[1], top))
        x = 8.0
        for text, colour in ((recording.title, WHITE), *captions):
            pen.text((x, HEIGHT - 22), text, colour, FONT, **EDGE)
            x += 12 + pen.textlength(text, FONT)
        yield picture


def enlarged(image: np.ndarray, width: int) -> np.ndarray:
    """Return an image `(height, width, 3)` with pixels that are larger squares, as wide as fits."""
    times = max(1, width // image.shape[1])
    return image.repeat(times, axis=0).repeat(times, axis=1)


def _camera(model: mujoco.MjModel) -> Any:
    """Return a camera that follows a robot, the model's first fixed one, or one that sees all."""
    if (root := floating_body(model)) is None:
        fixed = np.flatnonzero(model.cam_bodyid == 0)
        return int(fixed[0]) if len(fixed) else -1
    data, camera = mujoco.MjData(model), mujoco.MjvCamera()
    mujoco.mj_fwdPosition(model, data)
    own = model.body_rootid[model.geom_bodyid] == root
    distances = np.linalg.norm(data.geom_xpos[own] - data.subtree_com[root], axis=1)
    camera.distance = 3.5 * (distances + model.geom_rbound[own]).max()  # All of it is seen.
    camera.azimuth, camera.elevation = 130, -20
    camera.type, camera.trackbodyid = mujoco.mjtCamera.mjCAMERA_TRACKING, root
    return camera


def floating_body(model: mujoco.MjModel) -> int | None:
    """Return the root body with the most degrees of freedom, the robot's, if it moves freely."""
    root = int(np.bincount(model.body_rootid[model.dof_bodyid]).argmax())
    joint = model.body_jntadr[root]
    is_free = joint >= 0 and model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE
    return root if is_free else None


def add_ghost(
    scene: mujoco.MjvScene, model: mujoco.MjModel, data: mujoco.MjData, qpos: np.ndarray
) -> None:
    """Add what moves of a model, transparent, at positions `(nq,)`; `data` is for this alone."""
    data.qpos[:] = qpos
    mujoco.mj_kinematics(model, data)
    first, moving = scene.ngeom, int(mujoco.mjtCatBit.mjCAT_DYNAMIC)
    mujoco.mjv_addGeoms(model, data, mujoco.MjvOption(), mujoco.MjvPerturb(), moving, scene)
    for i in range(first, scene.ngeom):
        scene.geoms[i].matid, scene.geoms[i].rgba[:] = -1, GHOST_COLOUR


def skeleton(model: mujoco.MjModel, data: mujoco.MjData, qpos: np.ndarray) -> np.ndarray:
    """Return lines between bodies and what they hang on, `(lines, 2, 3)`, m, at positions
    `(nq,)`; `data` is for this alone."""
    data.qpos[:] = qpos
    mujoco.mj_kinematics(model, data)
    jointed = np.flatnonzero(model.body_parentid > 0)
    return np.stack((data.xpos[jointed], data.xpos[model.body_parentid[jointed]]), axis=1)


def add_arrows(
    scene: mujoco.MjvScene, starts: np.ndarray, vectors: np.ndarray, colour: Colour, width: float
) -> None:
    """Add an arrow `(3,)` or several `(n, 3)` to a scene, while there is room; lengths in m."""
    kind, rgba = mujoco.mjtGeom.mjGEOM_ARROW, np.array([*colour, 255], np.float32) / 255
    for start, vector in zip(starts.reshape(-1, 3), vectors.reshape(-1, 3), strict=True):
        length = np.linalg.norm(vector)
        if length < MIN_ARROW or scene.ngeom == scene.maxgeom:
            continue
        geom = scene.geoms[scene.ngeom]
        mujoco.mjv_initGeom(geom, kind, np.zeros(3), np.zeros(3), np.zeros(9), rgba)
        mujoco.mjv_connector(geom, kind, min(width, length / 3), start, start + vector)
        scene.ngeom += 1
