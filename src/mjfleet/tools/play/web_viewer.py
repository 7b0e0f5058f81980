"""Shows all environments in a browser by viser and mjviser, with controls for the playback."""

import copy
import html
import math
import secrets
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
from mjfleet.tools.play.realtime_playback import NEWEST, SPEEDS, Playback
from mjfleet.tools.play.web_guard import GuardedServer
from mjfleet.utils.console import print_line
from mjfleet.video.drawing import ARROW_COLOURS, GHOST_COLOUR, floating_body, skeleton

TEXT_SECONDS = 0.2
STYLE = (
    "width:100%;box-sizing:border-box;padding:0 0.8em 0.5em;font-size:0.8em;"
    "font-variant-numeric:tabular-nums;border-collapse:separate;border-spacing:0 0.25em"
)


def show_in_browser(playback: Playback, host: str, port: int) -> None:
    """Serve a page to everybody with the printed address, until a signal arrives.

    viser takes the next free port from `port` on. UserError if there is no such host.
    """
    try:
        socket.create_server((host, 0)).close()
    except (OSError, UnicodeError):
        must = "it must be a name or an IPv4 address of this machine"
        raise UserError(f"--host {host}: {must}.") from None
    rich.get_console().quiet = True  # Silences viser's banner.
    token = secrets.token_urlsafe(24)
    server = GuardedServer(host, port, token)
    try:
        display = WebDisplay(server, playback)
        name = socket.gethostname() if host == "0.0.0.0" else host
        address = f"http://{name}:{server.get_port()}/?token={token}"
        print_line(f"open {address} in a browser; Ctrl-C ends it")
        playback.watch(display.show, is_open=lambda: True)  # Pages may be opened again.
    finally:
        server.stop()


class WebDisplay:
    """A page that everybody who opens it shares.

    Only a control's own callback writes its value. If it also followed the task, a click that
    arrives at the same moment would be undone.
    """

    def __init__(self, server: viser.ViserServer, playback: Playback) -> None:
        model = playback.env.sim.model
        self._server, self._gui, self._playback = server, server.gui, playback
        # The scene changes its model's colours: it gets a copy.
        self._scene = ViserMujocoScene(server, copy.copy(model), playback.env.num_envs)
        # Only the thread that plays draws, when `needs_update` is set.
        self._scene.set_refresh_handler(lambda: None)
        self._scene.camera_tracking_enabled = floating_body(model) is not None
        self._spacing = _spacing(model)
        self._arrows: dict[str, viser.ArrowsHandle] = {}
        self._ghost: viser.LineSegmentsHandle | None = None
        self._ghost_data = mujoco.MjData(model)
        self._drawn = (-1, -1)  # Steps and environment.
        self._written, self._steps_written = time.perf_counter(), playback.steps
        self._gui.configure_theme(show_logo=False, show_share_button=False)
        tabs = self._gui.add_tab_group()
        with tabs.add_tab("Play"):
            self._add_playback()
        with tabs.add_tab("View"):
            self._scene.create_scene_gui(3 * float(model.stat.extent) + 2 * self._spacing)
        with tabs.add_tab("Overlays"):
            self._scene.create_overlay_gui()
        with tabs.add_tab("Groups"):
            self._scene.create_groups_gui()

    def show(self) -> None:
        """Draw what has changed, and write texts now and then."""
        playback = self._playback
        playback.shown = self._scene.env_idx
        now = (playback.steps, playback.shown)
        if self._drawn != now or self._scene.needs_update:
            self._drawn = now
            self._scene.needs_update = False
            self._draw()
        if time.perf_counter() - self._written > TEXT_SECONDS:
            self._write()

    def _add_playback(self) -> None:
        gui, playback = self._gui, self._playback
        self._status = gui.add_html("")
        actions = {"Pause, resume": playback.toggle, "Step": playback.step, "Reset": playback.reset}
        buttons = gui.add_button_group("Time", tuple(actions))
        buttons.on_click(lambda event: playback.later(actions[event.target.value]))
        speeds = [f"{speed:g}" for speed in SPEEDS]
        speed = gui.add_dropdown("Speed", speeds, initial_value="1")
        speed.on_update(lambda _: setattr(playback, "speed", float(speed.value)))
        seen = playback.seen()
        self._seen = None if seen is None else gui.add_image(seen, label="What the policy sees")
        names = (NEWEST, *playback.checkpoints())
        self._policy = gui.add_dropdown("Policy", names, visible=len(names) > 1)
        self._policy.value = playback.choice
        self._policy.on_update(lambda event: setattr(playback, "choice", event.target.value))
        if playback.env.commands():
            with gui.add_folder("Commands"):
                self._add_commands()
        self._numbers = gui.add_html("")

    def _add_commands(self) -> None:
        """Add a slider for each command, and a box that says whether they hold."""
        gui, playback, sliders = self._gui, self._playback, dict[str, Any]()
        by_hand = gui.add_checkbox("By hand", False, hint="Off: the task samples them.")

        def hold() -> None:
            held = {name: slider.value for name, slider in sliders.items()}
            playback.override_commands(held if by_hand.value else None)

        def on_slider(_: object) -> None:
            by_hand.value = True
            playback.later(hold)

        by_hand.on_update(lambda _: playback.later(hold))
        for name, (_, low, high) in playback.env.commands().items():
            if low < high:
                step = 10.0 ** math.floor(math.log10((high - low) / 100))
                sliders[name] = gui.add_slider(name, low, high, step, min(max(low, 0.0), high))
                sliders[name].on_update(on_slider)

    def _draw(self) -> None:
        """Draw all environments on a grid around the shown one, which keeps its position."""
        sim, shown = self._playback.env.sim, self._playback.shown
        cells = np.arange(sim.num_envs)
        columns = math.ceil(math.sqrt(sim.num_envs))
        grid = np.stack((cells // columns, cells % columns, 0 * cells), axis=1)
        aside = self._spacing * (grid - grid[shown])
        places = [tensor.cpu().numpy() + aside[:, None] for tensor in (sim.xpos, sim.mocap_pos)]
        turns = [tensor.cpu().numpy() for tensor in (sim.xmat, sim.mocap_quat)]
        state = {name: getattr(sim, name).cpu().numpy() for name in ("qpos", "qvel", "ctrl")}
        xmat = turns[0].reshape(sim.num_envs, -1, 3, 3)
        self._scene.update_from_arrays(places[0], xmat, places[1], turns[1], **state)
        visible = slice(shown, shown + 1) if self._scene.show_only_selected else slice(None)
        if (ghost := self._playback.env.ghost()) is not None:
            self._draw_ghost(ghost.cpu().numpy()[visible], aside[visible])
        for i, (name, arrow) in enumerate(self._playback.env.debug_vis().items()):
            starts, vectors = (part.cpu().numpy().reshape(len(cells), -1, 3) for part in arrow)
            ends = np.stack((starts, starts + vectors), axis=2) + aside[:, None, None]
            points = ends[visible].reshape(-1, 2, 3)
            if name in self._arrows:
                self._arrows[name].points = points.astype(np.float32)
                continue
            # The frame moves where the camera follows the robot.
            path = f"{self._scene.fixed_bodies_frame.name}/arrows/{name}"
            colour = ARROW_COLOURS[i % len(ARROW_COLOURS)]
            self._arrows[name] = self._server.scene.add_arrows(
                path, points, colour, shaft_radius=0.008, head_radius=0.02, head_length=0.05
            )
        if self._seen and (seen := self._playback.seen()) is not None:
            self._seen.image = seen
        self._server.flush()

    def _draw_ghost(self, qpos: np.ndarray, aside: np.ndarray) -> None:
        """Draw second robots as lines, at positions `(envs, nq)` and this far aside."""
        model, data = self._playback.env.sim.model, self._ghost_data
        lines = [skeleton(model, data, row) + at for row, at in zip(qpos, aside, strict=True)]
        points = np.concatenate(lines).astype(np.float32)
        if self._ghost and len(self._ghost.points) == len(points):
            self._ghost.points = points
            return
        path = f"{self._scene.fixed_bodies_frame.name}/ghost"
        colour = np.array(GHOST_COLOUR[:3])
        self._ghost = self._server.scene.add_line_segments(path, points, colour, thickness=0.02)

    def _write(self) -> None:
        """Update texts, and the checkpoints to choose from."""
        playback, now = self._playback, time.perf_counter()
        stepped = (playback.steps - self._steps_written) * playback.env.step_dt
        real = stepped / (now - self._written)
        self._written, self._steps_written = now, playback.steps
        seconds = int(playback.env.episode_length_buf[playback.shown]) * playback.env.step_dt
        terms, metrics = playback.numbers()
        total = sum(sums for _, _, sums in terms)
        speed = "paused" if playback.is_paused else f"{real:.2f} x real time"
        episode = f"{playback.shown}, {seconds:.1f} s, return {total:.4g}"
        status = [("playing", playback.playing), ("speed", speed), ("environment", episode)]
        self._status.content = table(status)
        commands, motion = playback.env.commands(), playback.motion()
        wanted = {name: float(value[playback.shown]) for name, (value, _, _) in commands.items()}
        rows = [
            (name, *(f"{of[name]:.2f}" if name in of else "" for of in (wanted, motion)))
            for name in dict.fromkeys((*wanted, *motion))
        ]
        rows = [("", "command", "robot"), *rows] if rows else []
        rows.append(("Rewards", "step", "episode"))
        rows += [(name, f"{step + 0.0:.3g}", f"{sums + 0.0:.4g}") for name, step, sums in terms]
        rows += [(name, f"{value:.3g}", "") for name, value in metrics.items()]
        self._numbers.content = table(rows)
        names = (NEWEST, *playback.checkpoints())
        if self._policy.options != names:
            self._policy.options = names


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Return rows of a name and its values as HTML."""
    lines = []
    for name, *cells in rows:
        data = "".join(f"<td style='text-align:right'>{html.escape(cell)}</td>" for cell in cells)
        lines.append(f"<tr><td>{html.escape(name)}</td>{data}</tr>")
    return f"<table style='{STYLE}'>{''.join(lines)}</table>"


def _spacing(model: mujoco.MjModel) -> float:
    """Return metres between environments; 0 with fixed geometry besides planes, drawn once."""
    fixed = model.body_weldid[model.geom_bodyid] == 0
    scenery = fixed & (model.geom_type != mujoco.mjtGeom.mjGEOM_PLANE)
    return 0.0 if scenery.any() else 2.0 * float(model.stat.extent)
