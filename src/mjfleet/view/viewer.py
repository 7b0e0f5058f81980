"""What `play --viewer` does. Importing this imports nothing heavy."""

from pathlib import Path
from typing import Literal

from mjfleet.worker.evaluation import Actions, playing
from mjfleet.worker.job import Job

Viewer = Literal["native", "web"]
NO_DISPLAY = (
    "--viewer native: there is no display with OpenGL here (DISPLAY). Over SSH, --viewer web shows "
    "the robot in a browser."
)


def view(
    job: Job,
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
        from mjfleet.view.playback import Playback

        playback = Playback(player, getattr(policy, "name", f"{policy} actions"), folder)
        if viewer == "web":
            from mjfleet.view.web import show_in_browser

            show_in_browser(playback, host, port)
        else:
            from mjfleet.view.native import show_in_window

            show_in_window(playback)
