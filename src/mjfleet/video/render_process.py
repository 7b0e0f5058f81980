"""A child process that draws a recording into an MP4 file: its parent's side, and its own."""

import os
import pickle
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from mjfleet.errors import WorkerError
from mjfleet.utils.child_process import ChildProcess, python_module
from mjfleet.utils.console import in_a_line
from mjfleet.utils.parent_death import die_with_parent

if TYPE_CHECKING:
    from mjfleet.video.state_recording import StateRecording

NICE = 19  # The lowest priority: each thread gets 1.5% of a busy core, and all of an idle one.
BACKENDS = ("egl", "osmesa")  # Values of MUJOCO_GL; the second one if the first fails.


class RenderProcess(ChildProcess):
    """Draws a recording into an MP4 file, which exists, whole, once `is_done`.

    `nice` is added to its niceness, see nice(2).
    """

    def __init__(self, recording: "StateRecording", path: Path, nice: int = 0) -> None:
        self.path = path
        chosen = os.environ.get("MUJOCO_GL")
        with tempfile.TemporaryFile() as file:
            pickle.dump(recording, file)
            file.seek(0)
            super().__init__(
                _command(str(path), str(nice), *([chosen] if chosen else BACKENDS)),
                stdin=file,
                new_session=False,  # Linux divides the processor among sessions first.
            )

    def is_done(self) -> bool:
        """Return whether the file exists; raise a WorkerError if it never will."""
        if code := self.exit_code():
            last = self.errors().strip().rpartition("\n")[2] or self.how_it_ended()
            raise WorkerError(f"{last}; `mjfleet doctor` says what drawing needs")
        return code == 0


def render(recording: "StateRecording", path: Path) -> None:
    """Draw a recording and wait for the file.

    Raises:
        WorkerError: it cannot be drawn; the message says why.
        OSError: there is no room for a temporary file, or no process can be started.
    """
    with RenderProcess(recording, path) as process:
        process.wait()
        process.is_done()


def main(path: str, nice: str, backend: str, *others: str) -> None:
    """Draw the recording that comes in by standard input.

    `backend` is the value of MUJOCO_GL; `others` are those to try if it does not work.
    """
    die_with_parent()
    os.nice(int(nice))
    os.environ["MUJOCO_GL"] = backend
    try:
        from mujoco.rendering.classic.gl_context import GLContext

        GLContext(16, 16).free()
    except Exception as error:
        if not others:
            sys.exit(f"MuJoCo cannot draw by {backend}: {in_a_line(error)}")
        # MuJoCo reads MUJOCO_GL once, when it is imported. The niceness stays.
        os.execv(sys.executable, _command(path, "0", *others))
    from mjfleet.video.drawing import write_video

    write_video(pickle.load(sys.stdin.buffer), Path(path))


def _command(*arguments: str) -> list[str]:
    return python_module("mjfleet.video.render_process", *arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
