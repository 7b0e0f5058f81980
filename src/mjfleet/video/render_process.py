"""A child process that draws a recording into an MP4 file: its parent's side, and its own.

Rank 0 or `play` starts it. Importing this imports nothing heavy.
"""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mjfleet.errors import WorkerError
from mjfleet.utils.child_process import ChildProcess, python_module
from mjfleet.utils.console import in_a_line
from mjfleet.utils.hardware_names import rendering_variables, usable_cores
from mjfleet.utils.parent_death import die_with_parent
from mjfleet.utils.progress import Progress

if TYPE_CHECKING:
    from mjfleet.video.state_recording import StateRecording

LOOK_SECONDS = 0.05
SHARE = 0.005  # Of all cores' time, for drawing: training needs memory and caches too.
BACKENDS = ("egl", "osmesa")  # Of MUJOCO_GL; the second one if the first does not work.


class RenderingError(WorkerError):
    """No video could be drawn."""


class RenderProcess(ChildProcess):
    """Draws a recording into an MP4 file, which exists, whole, once `is_done`.

    With `idle`, it uses only processors that are idle, and no more than SHARE of their time, until
    `hurry`.

    Raises:
        OSError: there is no room for a temporary file, or no process can be started.
    """

    def __init__(self, recording: "StateRecording", path: Path, *, idle: bool = False) -> None:
        self.path = path
        chosen = os.environ.get("MUJOCO_GL")
        command = _command(path, idle, [chosen] if chosen else BACKENDS)
        with tempfile.TemporaryFile() as file:
            recording.save(file)
            file.seek(0)
            # In the session of training: Linux gives every session as much of the processor.
            environ = rendering_variables(os.environ)
            super().__init__(command, stdin=file, environ=environ, new_session=False)

    def is_done(self) -> bool:
        """Return whether the file exists; raise a RenderingError if it never will."""
        if code := self.exit_code():
            lines = [line for line in self.errors().splitlines() if line.strip()]
            last = lines[-1] if lines else self.how_it_ended()
            raise RenderingError(f"{last}; `mjfleet doctor` says what drawing needs")
        return code == 0

    def share_done(self) -> float:
        """Return the share of the pictures that are drawn, 0 to 1."""
        *_, last = b"0", *self.output().split()
        return float(last)

    def hurry(self) -> None:
        """Let it use all time that processors have left; call it again, it may be too early."""
        self.send_signal(signal.SIGCONT)


def render(recording: "StateRecording", path: Path) -> None:
    """Draw a recording, show how far that is, and wait for the file.

    Raises:
        RenderingError: it could not be drawn.
        OSError: there is no room for a temporary file, or no process can be started.
    """
    progress = Progress(f"drawing {path}")
    with RenderProcess(recording, path) as process:
        try:
            while not process.is_done():
                time.sleep(LOOK_SECONDS)
                progress.show(process.share_done())
        finally:
            progress.close()


def main(path: str, idle: str, backend: str, *others: str) -> None:
    """Draw the recording that comes in by standard input; `idle` is "1" or "0".

    `backend` is the value of MUJOCO_GL; `others` are those to try if it does not work.
    """
    die_with_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCONT])
    if idle == "1":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    os.environ["MUJOCO_GL"] = backend
    try:
        from mujoco.rendering.classic.gl_context import GLContext

        GLContext(16, 16).free()
    except Exception as error:
        if not others:
            sys.exit(f"MuJoCo cannot draw by {backend}: {in_a_line(error)}")
        # MuJoCo reads MUJOCO_GL once, when it is imported.
        command = _command(Path(path), idle == "1", others)
        os.execv(command[0], command)
    from mjfleet.video.drawing import write_video
    from mjfleet.video.state_recording import StateRecording

    shares = os.dup(1)
    os.dup2(2, 1)  # Keeps what libraries print away from the shares.
    pause = _pauses() if idle == "1" else lambda: None

    def after_each(share: float) -> None:
        os.write(shares, f"{share:.4f}\n".encode())
        pause()

    write_video(StateRecording.load(sys.stdin.buffer), Path(path), after_each)


def _pauses() -> Callable[[], None]:
    """Return a function that sleeps for as long as keeps this process to its share."""
    start = time.monotonic()
    cores = usable_cores()
    is_in_a_hurry = False

    def pause() -> None:
        nonlocal is_in_a_hurry
        seconds = start + time.process_time() / (SHARE * cores) - time.monotonic()
        if seconds > 0 and not is_in_a_hurry:
            is_in_a_hurry = signal.sigtimedwait([signal.SIGCONT], seconds) is not None

    return pause


def _command(path: Path, idle: bool, backends: Sequence[str]) -> list[str]:
    return python_module("mjfleet.video.render_process", str(path), str(int(idle)), *backends)


if __name__ == "__main__":
    main(*sys.argv[1:])
