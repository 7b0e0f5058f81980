"""Shows one world in MuJoCo's own window, controlled by keys."""

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
from mjfleet.tools.play.realtime_playback import Playback, floating_body, watch
from mjfleet.utils.console import print_line

KEYS = "space pauses, right arrow steps, - and = change the speed, , and . the world, enter resets"
COLORS = np.array(((0.2, 0.6, 0.3, 1), (0.1, 0.4, 0.9, 1), (0.9, 0.4, 0.2, 1), (0.6, 0.4, 1, 1)))
ARROW_WIDTH = 0.01
NO_DISPLAY = (
    "--viewer native: there is no display with OpenGL here (DISPLAY). Over SSH, --viewer web shows "
    "the robot in a browser."
)


def show_in_window(playback: Playback) -> None:
    """Open a window and play until it is closed.

    Raises:
        UserError: there is no display, or none with OpenGL.
    """
    check_display()
    sim = playback.env.sim
    model, data = copy.copy(sim.model), mujoco.MjData(sim.model)
    keys: dict[int, Callable[[], object]] = {
        glfw.KEY_SPACE: playback.toggle,
        glfw.KEY_RIGHT: playback.step,
        glfw.KEY_ENTER: playback.reset,
        glfw.KEY_MINUS: lambda: playback.change_speed(-1),
        glfw.KEY_EQUAL: lambda: playback.change_speed(1),
        glfw.KEY_COMMA: lambda: playback.change_world(-1),
        glfw.KEY_PERIOD: lambda: playback.change_world(1),
    }

    def on_key(key: int) -> None:
        if key in keys:
            playback.later(keys[key])

    print_line(KEYS)
    others = set(threading.enumerate())
    window = mujoco.viewer.launch_passive(
        model, data, key_callback=on_key, show_left_ui=False, show_right_ui=False
    )
    drawing = set(threading.enumerate()) - others
    try:
        if (body := floating_body(model)) is not None:
            window.cam.type = mujoco.mjtCamera.mjCAMERA_TRACKING
            window.cam.trackbodyid = body
        watch(playback, WindowDisplay(window, data))
    finally:
        window.close()
        for thread in drawing:
            thread.join()  # Otherwise it would draw while Python closes the display.


class WindowDisplay:
    """Copies the shown world into the window's data."""

    def __init__(self, handle: mujoco.viewer.Handle, data: mujoco.MjData) -> None:
        self._handle, self._data = handle, data

    def is_open(self) -> bool:
        return self._handle.is_running()

    def show(self, playback: Playback) -> None:
        sim, world, handle = playback.env.sim, playback.world, self._handle
        with handle.lock():
            for name in ("time", "qpos", "qvel", "act", "ctrl", "mocap_pos", "mocap_quat"):
                value = getattr(sim, name)[world].cpu().numpy()
                setattr(self._data, name, value)
            self._draw_arrows(playback)
        terms, metrics = playback.numbers()
        rows = [(name, f"{sums:.4g}") for name, _, sums in terms]
        rows += [(name, f"{value:.3g}") for name, value in metrics.items()]
        state = "paused" if playback.is_paused else f"{playback.speed:g} x"
        rows = [("world", str(world)), ("speed", state), ("playing", playback.playing), *rows]
        left, right = ("\n".join(column) for column in zip(*rows, strict=True))
        font, corner = mujoco.mjtFontScale.mjFONTSCALE_100, mujoco.mjtGridPos.mjGRID_TOPLEFT
        handle.set_texts((font, corner, left, right))
        handle.sync(state_only=True)

    def _draw_arrows(self, playback: Playback) -> None:
        scene = self._handle.user_scn
        assert scene is not None  # It exists while the window is open.
        scene.ngeom = 0
        for color, (start, vector) in zip(cycle(COLORS), playback.env.debug_vis().values()):
            tail = start[playback.world].double().cpu().numpy()
            tip = tail + vector[playback.world].double().cpu().numpy()
            geom = scene.geoms[scene.ngeom]
            arrow = mujoco.mjtGeom.mjGEOM_ARROW
            mujoco.mjv_initGeom(geom, arrow, np.zeros(3), np.zeros(3), np.zeros(9), color)
            mujoco.mjv_connector(geom, arrow, ARROW_WIDTH, tail, tip)
            scene.ngeom += 1


def check_display() -> None:
    """Check that a window can be opened; without one, MuJoCo would wait for ever.

    Raises:
        UserError: there is no display, or none with OpenGL.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # GLFW warns about the same.
        try:
            if not glfw.init():
                raise UserError(NO_DISPLAY)
            glfw.window_hint(glfw.VISIBLE, glfw.FALSE)
            window = glfw.create_window(1, 1, "", None, None)
            if not window:
                raise UserError(NO_DISPLAY)
            glfw.destroy_window(window)
        finally:
            glfw.terminate()
