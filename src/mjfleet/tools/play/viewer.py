"""What `play --viewer` does. Importing this imports nothing heavy."""

import errno
import socket
from pathlib import Path
from typing import Literal

from mjfleet.errors import UserError
from mjfleet.tools.play.policy_episodes import Actions, playing
from mjfleet.worker.worker_args import WorkerArgs

Viewer = Literal["native", "web"]
PORTS = 100
"""How many ports are tried, from the wanted one on."""
NO_DISPLAY = (
    "--viewer native: there is no display with OpenGL here (DISPLAY). Over SSH, --viewer web shows "
    "the robot in a browser."
)


def view(
    job: WorkerArgs,
    policy: Path | Actions | None,
    folder: Path | None,
    viewer: Viewer,
    host: str,
    port: int,
) -> None:
    """Play in real time until the viewer is closed.

    Args:
        job: the task and its configuration, on one device.
        policy: a checkpoint, or which actions to take instead.
        folder: where newer checkpoints may appear, which are to be played then; None: nowhere.
        viewer: MuJoCo's own window, or a page for browsers.
        host: where the page is served.
        port: the first port to try.

    Raises:
        UserError: nothing can be shown here.
    """
    with playing(job, policy) as player:
        from mjfleet.tools.play.realtime_playback import Playback

        playback = Playback(player, getattr(policy, "name", f"{policy} actions"), folder)
        if viewer == "web":
            from mjfleet.tools.play.web_viewer import show_in_browser

            show_in_browser(playback, host, port)
        else:
            from mjfleet.tools.play.window_viewer import show_in_window

            show_in_window(playback)


def free_port(host: str, wanted: int) -> int:
    """The first port from `wanted` on that nobody listens at.

    Raises:
        UserError: there is no listening at that address, or no port is free.
    """
    for port in range(wanted, min(wanted + PORTS, 2**16)):
        try:
            with socket.create_server((host, port)):
                return port
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise UserError(f"--host {host}, --port {port}: {error.strerror}.") from None
    raise UserError(f"--port {wanted}: it and those that follow are all in use.")
