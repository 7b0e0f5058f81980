"""A process that draws a recording: how it is started and looked after, and what it does.

A worker, or `play`, starts it and goes on. Importing this imports nothing heavy.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from mjfleet.errors import WorkerError
from mjfleet.utils.console import in_a_line
from mjfleet.utils.parent_death import PARENT_VARIABLE, die_with_parent

if TYPE_CHECKING:
    from mjfleet.video.recording import Recording

LOOK_SECONDS = 0.05
SHARE = 0.005
"""Of all cores' time: what drawing takes from training, which also shares memory and caches."""
KINDS = ("egl", "osmesa")
"""By what MuJoCo draws without a window; the second is the fall-back of the first."""


class RenderingError(WorkerError):
    """No video could be drawn."""


class Rendering:
    """A recording on its way to a file, which is there, whole, once this is done.

    `close` has to be called in any case.
    """

    def __init__(self, recording: "Recording", path: Path, *, idle: bool = False) -> None:
        """Start to draw.

        Args:
            recording: what to draw.
            path: the MP4 file, in a folder that is there or can be made.
            idle: use the processor only while nobody else does, and no more than SHARE of it,
                until `hurry`.

        Raises:
            OSError: there is no room for a temporary file, or no process can be started.
        """
        self.path = path
        kinds = [os.environ["MUJOCO_GL"]] if os.environ.get("MUJOCO_GL") else KINDS
        with tempfile.TemporaryFile() as file:
            recording.save(file)
            file.seek(0)
            self._process = subprocess.Popen(
                _command(path, idle, kinds),
                stdin=file,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                # Ctrl-C is for who has started it. A session of its own would do, but Linux gives
                # each as much as all of training: autogroups, see sched(7).
                process_group=0,
                env=os.environ | {PARENT_VARIABLE: str(os.getpid())},
            )

    def is_done(self) -> bool:
        """Whether the file is there.

        Raises:
            RenderingError: it never will be.
        """
        code = self._process.poll()
        if code:
            assert self._process.stderr
            said = self._process.stderr.read().split("\n")
            last = next((line for line in reversed(said) if line.strip()), f"exit code {code}")
            raise RenderingError(f"{last}; `mjfleet doctor` says what drawing needs")
        return code == 0

    def hurry(self) -> None:
        """Have it take all that others leave of the processor; said too early, it is not heard."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it, done or not."""
        self._process.kill()
        self._process.communicate()


def draw(recording: "Recording", path: Path) -> None:
    """Draw a recording, and wait for it.

    Raises:
        RenderingError: it could not be drawn.
        OSError: there is no room for a temporary file, or no process can be started.
    """
    with closing(Rendering(recording, path)) as rendering:
        while not rendering.is_done():
            time.sleep(LOOK_SECONDS)


def main(arguments: Sequence[str]) -> None:
    """Draw the recording that comes in by standard input.

    Args:
        arguments: the file to write, whether only an idle processor is used ("1"), and by what
            MuJoCo may draw, one or more.
    """
    die_with_parent()
    path, idle, kind, *others = arguments
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCONT])
    if idle == "1":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    os.environ["MUJOCO_GL"] = kind
    try:
        from mujoco.rendering.classic.gl_context import GLContext

        GLContext(16, 16).free()
    except Exception as error:
        if not others:
            sys.exit(f"MuJoCo cannot draw by {kind}: {in_a_line(error)}")
        # What it draws by is fixed once it has been imported.
        command = _command(Path(path), idle == "1", others)
        os.execv(command[0], command)
    from mjfleet.video.draw import write_video
    from mjfleet.video.recording import Recording

    pause = _pauses() if idle == "1" else lambda: None
    write_video(Recording.load(sys.stdin.buffer), Path(path), pause)


def _pauses() -> Callable[[], None]:
    """Called again and again, it sleeps as much as keeps this process to its share."""
    start = time.monotonic()
    cores = len(os.sched_getaffinity(0))
    is_in_a_hurry = False

    def pause() -> None:
        nonlocal is_in_a_hurry
        seconds = start + time.process_time() / (SHARE * cores) - time.monotonic()
        if seconds > 0 and not is_in_a_hurry:
            is_in_a_hurry = signal.sigtimedwait([signal.SIGCONT], seconds) is not None

    return pause


def _command(path: Path, idle: bool, kinds: Sequence[str]) -> list[str]:
    # As with a command, what lies in this folder is not imported.
    module = [sys.executable, "-P", "-m", "mjfleet.video.render_process"]
    return [*module, str(path), str(int(idle)), *kinds]


if __name__ == "__main__":
    main(sys.argv[1:])
