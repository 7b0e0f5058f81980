"""Shows all worlds in a browser by viser and mjviser, with controls for the playback."""

import copy
import errno
import html
import math
import socket
import time
from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
import rich
import viser
from mjviser import ViserMujocoScene

from mjfleet.errors import UserError
from mjfleet.tools.play.realtime_playback import SPEEDS, Playback, floating_body, watch
from mjfleet.utils.console import print_line

TEXT_SECONDS = 0.2
ARROW_COLORS = ((46, 160, 67), (31, 111, 235), (219, 109, 40), (163, 113, 247))
PORTS = 100  # Number of ports that are tried.


def show_in_browser(playback: Playback, host: str, port: int) -> None:
    """Serve a page at a port that is free, or the next free one; play until a signal arrives."""
    rich.get_console().quiet = True  # Silences viser's banner.
    server = viser.ViserServer(host, port, "mjfleet", verbose=False)
    try:
        display = WebDisplay(server, playback)
        name = socket.gethostname() if host == "0.0.0.0" else host
        print_line(f"open http://{name}:{server.get_port()} in a browser; Ctrl-C ends it")
        watch(playback, display.show, is_open=lambda: True)  # Pages may be opened again.
    finally:
        server.stop()


def free_port(host: str, first: int) -> int:
    """Return the first free port, from `first` on; a UserError if there is none."""
    for port in range(first, min(first + PORTS, 2**16)):
        try:
            with socket.create_server((host, port)):
                return port
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise UserError(f"--host {host}, --port {port}: {error.strerror}.") from None
    raise UserError(f"--port {first}: this port and those that follow are all in use.")


class WebDisplay:
    """A page that everybody who opens it shares."""

    def __init__(self, server: viser.ViserServer, playback: Playback) -> None:
        env = playback.env
        self._server, self._playback = server, playback
        # The scene changes its model's colours: it gets a copy.
        self._scene = ViserMujocoScene(server, copy.copy(env.sim.model), env.num_envs)
        # Only the thread that plays draws, when `needs_update` is set.
        self._scene.set_refresh_handler(lambda: None)
        self._arrows: dict[str, viser.ArrowsHandle] = {}
        self._sliders: dict[str, viser.GuiSliderHandle[float]] = {}
        self._is_by_hand = False
        self._drawn = (-1, -1, 0.0)
        self._before, self._steps_before = time.perf_counter(), playback.steps
        self._build()

    def show(self) -> None:
        playback = self._playback
        playback.world = self._scene.env_idx
        now = (playback.steps, playback.world, self._spacing.value)
        if self._drawn != now or self._scene.needs_update:
            self._drawn = now
            self._scene.needs_update = False
            self._draw()
        if time.perf_counter() - self._before > TEXT_SECONDS:
            self._write()

    def _build(self) -> None:
        gui, playback = self._server.gui, self._playback
        gui.configure_theme(show_logo=False, show_share_button=False)
        tabs = gui.add_tab_group()
        with tabs.add_tab("Play"):
            self._status = gui.add_html("")
            actions = {"Pause": playback.toggle, "Step": playback.step, "Reset": playback.reset}
            buttons = gui.add_button_group("Time", tuple(actions))
            buttons.on_click(lambda event: playback.later(actions[event.target.value]))
            speed = gui.add_dropdown("Speed", [f"{speed:g}" for speed in SPEEDS], initial_value="1")
            speed.on_update(lambda _: setattr(playback, "speed", float(speed.value)))
            model = playback.env.sim.model
            spacing = _spacing(model)
            self._spacing = gui.add_slider(
                "Spacing (m)", 0.0, max(10.0, spacing), 0.1, spacing, hint="Between worlds."
            )
            self._scene.camera_tracking_enabled = floating_body(model) is not None
            self._scene.create_scene_gui(3 * float(model.stat.extent) + 2 * spacing)
            if playback.env.commands():
                self._add_commands()
            with gui.add_folder("Rewards and metrics"):
                self._numbers = gui.add_html("")
        with tabs.add_tab("Overlays"):
            self._scene.create_overlay_gui()
        with tabs.add_tab("Groups"):
            self._scene.create_groups_gui()

    def _add_commands(self) -> None:
        gui, playback = self._server.gui, self._playback

        def on_change(event: viser.GuiEvent[Any]) -> None:
            if event.client is None:
                return  # Set by `_write` to the task's command.
            if event.target is not by_hand:
                by_hand.value = True
            # From now on `_write` leaves the sliders where they are.
            self._is_by_hand = by_hand.value
            held = {name: slider.value for name, slider in self._sliders.items()}
            playback.later(lambda: playback.override_commands(held if by_hand.value else None))

        with gui.add_folder("Commands"):
            by_hand = gui.add_checkbox("By hand", False, hint="Off: the task samples them.")
            by_hand.on_update(on_change)
            for name, (_, low, high) in playback.env.commands().items():
                if low < high:
                    step = 10.0 ** math.floor(math.log10((high - low) / 100))
                    self._sliders[name] = gui.add_slider(name, low, high, step, low)
                    self._sliders[name].on_update(on_change)

    def _draw(self) -> None:
        """Draw all worlds on a grid around the shown one, which keeps its position."""
        sim, world = self._playback.env.sim, self._playback.world
        cells = np.arange(sim.num_envs)
        columns = math.ceil(math.sqrt(sim.num_envs))
        grid = np.stack((cells // columns, cells % columns, 0 * cells), axis=1)
        aside = self._spacing.value * (grid - grid[world])
        places = [tensor.cpu().numpy() + aside[:, None] for tensor in (sim.xpos, sim.mocap_pos)]
        turns = [tensor.cpu().numpy() for tensor in (sim.xmat, sim.mocap_quat)]
        state = {name: getattr(sim, name).cpu().numpy() for name in ("qpos", "qvel", "ctrl")}
        xmat = turns[0].reshape(sim.num_envs, -1, 3, 3)
        self._scene.update_from_arrays(places[0], xmat, places[1], turns[1], **state)
        shown = slice(world, world + 1) if self._scene.show_only_selected else slice(None)
        for i, (name, arrow) in enumerate(self._playback.env.debug_vis().items()):
            start, vector = (part.cpu().numpy() for part in arrow)
            points = np.stack((start + aside, start + aside + vector), axis=1)[shown]
            if name in self._arrows:
                self._arrows[name].points = points.astype(np.float32)
            else:
                # The frame moves where the camera follows the robot.
                path = f"{self._scene.fixed_bodies_frame.name}/arrows/{name}"
                self._arrows[name] = self._server.scene.add_arrows(
                    path, points, ARROW_COLORS[i % len(ARROW_COLORS)], shaft_radius=0.008,
                    head_radius=0.02, head_length=0.05,
                )  # fmt: skip
        self._server.flush()

    def _write(self) -> None:
        """Update texts, numbers and sliders."""
        playback = self._playback
        now = time.perf_counter()
        real = (playback.steps - self._steps_before) * playback.env.step_dt / (now - self._before)
        self._before, self._steps_before = now, playback.steps
        seconds = int(playback.env.episode_length_buf[playback.world]) * playback.env.step_dt
        terms, metrics = playback.numbers()
        total = sum(sums for _, _, sums in terms)
        speed = "paused" if playback.is_paused else f"{real:.2f} x real time"
        world = f"{playback.world}, {seconds:.1f} s, return {total:.4g}"
        status = [("playing", playback.playing), ("speed", speed), ("world", world)]
        self._status.content = _table(status)
        rows = [(name, f"{step:.3g}", f"{sums:.4g}") for name, step, sums in terms]
        rows += [(name, f"{value:.3g}", "") for name, value in metrics.items()]
        self._numbers.content = _table([("", "step", "episode"), *rows])
        if not self._is_by_hand:
            commands = playback.env.commands()
            for name, slider in self._sliders.items():
                values, low, high = commands[name]
                value = round(min(max(float(values[playback.world]), low), high), 3)
                if slider.value != value:
                    slider.value = value


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    """Return rows of a name and its values as HTML."""
    lines = []
    for name, *cells in rows:
        data = "".join(f"<td style='text-align:right'>{html.escape(cell)}</td>" for cell in cells)
        lines.append(f"<tr><td>{html.escape(name)}</td>{data}</tr>")
    style = "width:100%;padding:0 0.8em 0.5em;font-size:0.8em;font-variant-numeric:tabular-nums"
    return f"<table style='{style}'>{''.join(lines)}</table>"


def _spacing(model: mujoco.MjModel) -> float:
    """Return metres between worlds; 0 with fixed geometry besides planes, which is drawn once."""
    fixed = model.body_weldid[model.geom_bodyid] == 0
    scenery = fixed & (model.geom_type != mujoco.mjtGeom.mjGEOM_PLANE)
    return 0.0 if scenery.any() else 2.0 * float(model.stat.extent)
