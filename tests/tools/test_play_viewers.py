"""`play --viewer`: a page that answers, and a window."""

import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
import torch

from ..conftest import PATIENCE, Run, Start, WarmCommand
from ..runs.test_damaged_runs import RUN
from .test_play_realtime import play

RANDOM = ("--actions", "random", "--viewer", "web")
TINY = ("--gpu-ids", "None", "--env.num-envs", "2")


def test_a_page_is_served_that_follows_the_run_until_ctrl_c(start: Start, tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(RUN, tmp_path / "logs" / "cartpole-balance" / RUN.name))
    with socket.create_server(("localhost", 0)) as taken:
        port = taken.getsockname()[1]
        flags = ("--resume", "latest", "--viewer", "web", "--port", str(port))
        viewer = start("play", "cartpole-balance", *TINY, *flags)
        address = re.search(r"http://\S+", read_until(viewer, "http://"))
        assert address
        assert urlsplit(address[0]).port != port
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with browser.open(address[0], timeout=PATIENCE) as page:
            assert b"<html" in page.read()
        checkpoints = run_dir / "checkpoints"
        shutil.copy(checkpoints / "model_3.pt", checkpoints / "new")
        (checkpoints / "new").rename(checkpoints / "model_4.pt")
        read_until(viewer, "model_4.pt")
        viewer.send_signal(signal.SIGINT)
        rest, errors = viewer.communicate()
    assert viewer.returncode == 130, rest + errors
    assert "Traceback" not in rest + errors
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("localhost", urlsplit(address[0]).port))


LOSE_A_SIGNAL = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "mjviser":
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except BaseException:
                pass  # As trimesh does, which mjviser imports, around imports of its own.
sys.meta_path.insert(0, Finder())
"""


def test_a_signal_that_an_import_swallows_ends_the_viewer(run: Run) -> None:
    done = run("play", "cartpole-balance", *TINY, *RANDOM, late=LOSE_A_SIGNAL)
    assert done.returncode == 130, done.stdout + done.stderr


def read_until(process: WarmCommand, word: str) -> str:
    """The first line with a word; what comes before it where there is none."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if word in line:
            return line
    raise AssertionError("".join(lines))


@pytest.fixture
def display(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A display in memory."""
    if not shutil.which("Xvfb"):
        pytest.skip("needs Xvfb")
    import glfw

    reader, writer = os.pipe()
    command = ["Xvfb", "-displayfd", str(writer), "-screen", "0", "640x480x24", "-nolisten", "tcp"]
    with subprocess.Popen(command, pass_fds=[writer], stderr=subprocess.DEVNULL) as server:
        os.close(writer)
        try:
            with os.fdopen(reader) as file:
                monkeypatch.setenv("DISPLAY", f":{file.readline().strip()}")
            yield os.environ["DISPLAY"]
        finally:
            glfw.terminate()  # Python would do so at its end, to a display that is gone.
            server.terminate()


class ClosedError(Exception):
    """Somebody closes the window."""


@pytest.mark.usefixtures("display")
def test_a_window_shows_the_playback_and_leaves_no_thread_behind() -> None:
    from mjfleet.tools.play.window_viewer import show_in_window

    playback, _ = play()
    pictures = torch.zeros(2, 32, 32, 3, dtype=torch.uint8)
    playback._camera = SimpleNamespace(pictures=lambda: pictures)
    before = set(threading.enumerate())

    def look() -> None:
        if playback.steps > 3:
            assert set(threading.enumerate()) > before
            raise ClosedError
        playback.later(look)

    playback.later(look)
    with pytest.raises(ClosedError):
        show_in_window(playback)
    assert set(threading.enumerate()) == before
