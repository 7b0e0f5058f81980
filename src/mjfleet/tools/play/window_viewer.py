"""Shows one environment in MuJoCo's own window, controlled by keys."""

import copy
import threading
import warnings
from collections.abc import Callable
from itertools import cycle

import glfw
import mujoco
import mujoco.viewer
import numpy as np

from mjfleet.errors import UserError
from mjfleet.tools.play.realtime_playback import Playback
from mjfleet.utils.console import print_line
from mjfleet.video.drawing import ARROW_COLOURS, add_arrows, add_ghost, floating_body

KEYS = (
    "space pauses, right arrow steps, - and = change the speed, , and . the environment, enter "
    "resets"
)
ARROW_WIDTH = 0.01


def show_in_window(playback: Playback) -> None:
    """Open a window and play until it is closed; UserError without a display with OpenGL."""
    _check_display()
    sim = playback.env.sim
    model, data = copy.copy(sim.model), mujoco.MjData(sim.model)
    ghost = mujoco.MjData(sim.model)
    keys: dict[int, Callable[[], object]] = {
        glfw.KEY_SPACE: playback.toggle,
        glfw.KEY_RIGHT: playback.step,
        glfw.KEY_ENTER: playback.reset,
        glfw.KEY_MINUS: lambda: playback.change_speed(-1),
        glfw.KEY_EQUAL: lambda: playback.change_speed(1),
        glfw.KEY_COMMA: lambda: playback.show_other(-1),
        glfw.KEY_PERIOD: lambda: playback.show_other(1),
    }
    print_line(KEYS)
    others = set(threading.enumerate())
    window = mujoco.viewer.launch_passive(
        model,
        data,
        key_callback=lambda key: playback.later(keys.get(key, lambda: None)),
        show_left_ui=False,
        show_right_ui=False,
    )
    drawing = set(threading.enumerate()) - others
    try:
        if (body := floating_body(model)) is not None:
            window.cam.type = mujoco.mjtCamera.mjCAMERA_TRACKING
            window.cam.trackbodyid = body
        playback.watch(lambda: _show(playback, window, data, ghost), window.is_running)
    finally:
        window.close()
        for thread in drawing:
            thread.join()  # Otherwise it would draw while Python closes the display.


def _show(
    playback: Playback, window: mujoco.viewer.Handle, data: mujoco.MjData, ghost: mujoco.MjData
) -> None:
    """Copy the shown environment into the window's data, and write its numbers."""
    shown, scene = playback.shown, window.user_scn
    assert scene is not None  # It exists while the window is open.
    with window.lock():
        for name in ("time", "qpos", "qvel", "act", "ctrl", "mocap_pos", "mocap_quat"):
            setattr(data, name, getattr(playback.env.sim, name)[shown].cpu().numpy())
        scene.ngeom = 0
        if (qpos := playback.env.ghost()) is not None:
            add_ghost(scene, playback.env.sim.model, ghost, qpos[shown].cpu().numpy())
        for colour, arrow in zip(cycle(ARROW_COLOURS), playback.env.debug_vis().values()):
            starts, vectors = (part[shown].double().cpu().numpy() for part in arrow)
            add_arrows(scene, starts, vectors, colour, ARROW_WIDTH)
    state = "paused" if playback.is_paused else f"{playback.speed:g} x"
    rows = [("environment", str(shown)), ("speed", state), ("playing", playback.playing)]
    rows += [(name, f"{sums:.4g}") for name, _, sums in playback.numbers()[0]]
    left, right = ("\n".join(column) for column in zip(*rows, strict=True))
    font, corner = mujoco.mjtFontScale.mjFONTSCALE_100, mujoco.mjtGridPos.mjGRID_TOPLEFT
    window.set_texts((font, corner, left, right))
    if (seen := playback.seen()) is not None:
        height, width, _ = seen.shape
        window.set_images((mujoco.MjrRect(0, 0, width, height), np.ascontiguousarray(seen)))
    window.sync(state_only=True)


def _check_display() -> None:
    """Raise UserError without a display with OpenGL; MuJoCo would wait for it forever."""
    with warnings.catch_warnings(action="ignore"):  # GLFW warns about the same.
        glfw.init()
        glfw.window_hint(glfw.VISIBLE, glfw.FALSE)
        window = glfw.create_window(1, 1, "", None, None)
        glfw.terminate()
    if not window:
        raise UserError("--viewer native: there is no display with OpenGL here: use --viewer web.")
