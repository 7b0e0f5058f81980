"""Shows all environments in a browser by viser and mjviser, with controls for the playback."""

import copy
import errno
import math
import socket
import time
from typing import Any

import mujoco
import numpy as np
import rich
import viser
from mjviser import ViserMujocoScene

from mjfleet.errors import UserError
from mjfleet.tools.play.realtime_playback import NEWEST, SPEEDS, Playback
from mjfleet.tools.play.web_guard import GuardedServer
from mjfleet.tools.play.web_tables import note, reward_bars, table
from mjfleet.utils.console import print_line
from mjfleet.video.drawing import ARROW_COLOURS, floating_body

TEXT_SECONDS = 0.2
CHOICES_SECONDS = 1.0  # Between looks for checkpoints that have appeared.
KEYS = (
    "Keys: space pauses and resumes, N takes a step, R resets, page up and down change the speed."
)
PORTS = 100  # Number of ports that are tried.


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


def show_in_browser(playback: Playback, host: str, port: int, token: str) -> None:
    """Serve a page at a free port to who knows the token; play until a signal arrives."""
    rich.get_console().quiet = True  # Silences viser's banner.
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
    """A page that everybody who opens it shares."""

    def __init__(self, server: viser.ViserServer, playback: Playback) -> None:
        model, num_envs = playback.env.sim.model, playback.env.num_envs
        self._server, self._gui, self._playback = server, server.gui, playback
        # The scene changes its model's colours: it gets a copy.
        self._scene = ViserMujocoScene(server, copy.copy(model), num_envs)
        # Only the thread that plays draws, when `needs_update` is set.
        self._scene.set_refresh_handler(lambda: None)
        self._arrows: dict[str, viser.ArrowsHandle] = {}
        self._sliders: dict[str, viser.GuiSliderHandle[float]] = {}
        self._is_by_hand = False
        self._drawn = (-1, -1, 0.0)  # Steps, environment and spacing.
        self._written, self._steps_written = time.perf_counter(), playback.steps
        self._looked = self._written
        self._gui.configure_theme(show_logo=False, show_share_button=False)
        tabs = self._gui.add_tab_group()
        with tabs.add_tab("Play"):
            self._add_playback()
        with tabs.add_tab("View"):
            spacing = _spacing(model)
            self._spacing = self._gui.add_slider(
                "Spacing (m)", 0.0, max(10.0, spacing), 0.1, spacing, hint="Between environments."
            )
            self._scene.camera_tracking_enabled = floating_body(model) is not None
            self._scene.create_scene_gui(3 * float(model.stat.extent) + 2 * spacing)
        with tabs.add_tab("Overlays"):
            self._scene.create_overlay_gui()
        with tabs.add_tab("Groups"):
            self._scene.create_groups_gui()

    def show(self) -> None:
        """Draw what has changed, and write texts now and then."""
        playback = self._playback
        playback.shown = self._scene.env_idx
        now = (playback.steps, playback.shown, self._spacing.value)
        if self._drawn != now or self._scene.needs_update:
            self._drawn = now
            self._scene.needs_update = False
            self._draw()
        if time.perf_counter() - self._written > TEXT_SECONDS:
            self._write()

    def _add_playback(self) -> None:
        gui, playback = self._gui, self._playback
        self._status = gui.add_html("")
        actions = {
            "Pause": playback.toggle,
            "Resume": playback.toggle,
            "Step": playback.step,
            "Reset": playback.reset,
        }
        self._buttons = gui.add_button_group("Time", ("Pause", "Step", "Reset"))
        self._buttons.on_click(lambda event: playback.later(actions[event.target.value]))
        self._speed = gui.add_dropdown("Speed", [f"{s:g}" for s in SPEEDS], initial_value="1")
        self._speed.on_update(lambda _: setattr(playback, "speed", float(self._speed.value)))
        keys: tuple[tuple[str, Any, Any], ...] = (
            ("Pause or resume", "space", playback.toggle),
            ("Take a step", "N", playback.step),
            ("Reset all environments", "R", playback.reset),
            ("Faster", "pageup", lambda: playback.change_speed(1)),
            ("Slower", "pagedown", lambda: playback.change_speed(-1)),
        )
        for label, key, action in keys:
            command = gui.add_command(label, hotkey=key)
            command.on_trigger(lambda _, action=action: playback.later(action))
        names = self._choices()
        self._policy = gui.add_dropdown("Policy", names, visible=len(names) > 1)
        self._policy.value = NEWEST if playback.follows_newest else playback.playing
        self._policy.on_update(self._choose)
        if playback.env.commands() or playback.motion():
            with gui.add_folder("Commands" if playback.env.commands() else "Robot"):
                self._add_commands()
                self._motion = gui.add_html("")
        with gui.add_folder("Rewards and metrics"):
            self._numbers = gui.add_html("")
        gui.add_html(note(KEYS))

    def _choices(self) -> tuple[str, ...]:
        """Return the checkpoints to choose from, in a run's folder also the newest one."""
        names = self._playback.checkpoints()
        return (NEWEST, *names) if names else (self._playback.playing,)

    def _choose(self, event: viser.GuiEvent[Any]) -> None:
        if event.client is not None:
            name = event.target.value
            self._playback.later(lambda: self._playback.choose(name))

    def _add_commands(self) -> None:
        gui, playback = self._gui, self._playback
        if not playback.env.commands():
            return

        def on_change(event: viser.GuiEvent[Any]) -> None:
            if event.client is None:
                return  # Set by `_write` to the task's command.
            if event.target is not by_hand:
                by_hand.value = True
            # From now on `_write` leaves the sliders where they are.
            self._is_by_hand = by_hand.value
            held = {name: slider.value for name, slider in self._sliders.items()}
            playback.later(lambda: playback.override_commands(held if by_hand.value else None))

        by_hand = gui.add_checkbox("By hand", False, hint="Off: the task samples them.")
        by_hand.on_update(on_change)
        for name, (_, low, high) in playback.env.commands().items():
            if low < high:
                step = 10.0 ** math.floor(math.log10((high - low) / 100))
                self._sliders[name] = gui.add_slider(name, low, high, step, low)
                self._sliders[name].on_update(on_change)

    def _draw(self) -> None:
        """Draw all environments on a grid around the shown one, which keeps its position."""
        sim, shown = self._playback.env.sim, self._playback.shown
        cells = np.arange(sim.num_envs)
        columns = math.ceil(math.sqrt(sim.num_envs))
        grid = np.stack((cells // columns, cells % columns, 0 * cells), axis=1)
        aside = self._spacing.value * (grid - grid[shown])
        places = [tensor.cpu().numpy() + aside[:, None] for tensor in (sim.xpos, sim.mocap_pos)]
        turns = [tensor.cpu().numpy() for tensor in (sim.xmat, sim.mocap_quat)]
        state = {name: getattr(sim, name).cpu().numpy() for name in ("qpos", "qvel", "ctrl")}
        xmat = turns[0].reshape(sim.num_envs, -1, 3, 3)
        self._scene.update_from_arrays(places[0], xmat, places[1], turns[1], **state)
        visible = slice(shown, shown + 1) if self._scene.show_only_selected else slice(None)
        for i, (name, arrow) in enumerate(self._playback.env.debug_vis().items()):
            start, vector = (part.cpu().numpy() for part in arrow)
            points = np.stack((start + aside, start + aside + vector), axis=1)[visible]
            if name in self._arrows:
                self._arrows[name].points = points.astype(np.float32)
                continue
            # The frame moves where the camera follows the robot.
            path = f"{self._scene.fixed_bodies_frame.name}/arrows/{name}"
            colour = ARROW_COLOURS[i % len(ARROW_COLOURS)]
            self._arrows[name] = self._server.scene.add_arrows(
                path, points, colour, shaft_radius=0.008, head_radius=0.02, head_length=0.05
            )
        self._server.flush()

    def _write(self) -> None:
        """Update texts, numbers, choices and sliders."""
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
        numbers = table([(name, f"{value:.3g}") for name, value in metrics.items()])
        self._numbers.content = reward_bars(terms) + numbers
        first = "Resume" if playback.is_paused else "Pause"
        _set(self._buttons, "options", (first, "Step", "Reset"))
        _set(self._speed, "value", f"{playback.speed:g}")
        if now - self._looked > CHOICES_SECONDS:
            self._looked = now
            _set(self._policy, "options", self._choices())
        self._write_motion()

    def _write_motion(self) -> None:
        """Show the commands beside what the robot does, and let the sliders follow the task."""
        playback, motion = self._playback, self._playback.motion()
        commands = playback.env.commands()
        wanted = {name: float(value[playback.shown]) for name, (value, _, _) in commands.items()}
        rows = [
            (name, *(f"{of[name]:.2f}" if name in of else "" for of in (wanted, motion)))
            for name in dict.fromkeys((*wanted, *motion))
        ]
        if rows:
            self._motion.content = table([("", "command", "robot"), *rows])
        if not self._is_by_hand:
            for name, slider in self._sliders.items():
                _, low, high = commands[name]
                _set(slider, "value", round(min(max(wanted[name], low), high), 3))


def _set(handle: Any, name: str, value: object) -> None:
    """Set a property of a control, which is sent to all browsers, if it differs."""
    if getattr(handle, name) != value:
        setattr(handle, name, value)


def _spacing(model: mujoco.MjModel) -> float:
    """Return metres between environments; 0 with fixed geometry besides planes, drawn once."""
    fixed = model.body_weldid[model.geom_bodyid] == 0
    scenery = fixed & (model.geom_type != mujoco.mjtGeom.mjGEOM_PLANE)
    return 0.0 if scenery.any() else 2.0 * float(model.stat.extent)
