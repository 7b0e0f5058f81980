"""Runs a command of mjfleet's in a child process, and raises here what it has found.

The process of a script or a notebook thus keeps its settings, and may train several runs at once.
"""

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from mjfleet.cli.dispatcher import mjfleet
from mjfleet.cli.run_command import run_command
from mjfleet.errors import UserError
from mjfleet.utils.child_process import KEEP, ChildProcess, python_module
from mjfleet.utils.parent_death import PARENT_VARIABLE, die_with_parent, stop_with_parent

LOOK_SECONDS = 0.5
MISTAKE = 2  # The exit code after a mistake of the user's.


class CommandProcess:
    """A command that runs, with a folder for files that only it reads.

    Args:
        make_arguments: returns the command's arguments; it may write files into the folder.
        is_shown: whether its output is shown here; in a notebook, only warnings and errors are.
        place: where that folder is made, if it exists, or the nearest folder that does. None: where
            temporary files belong.
    """

    def __init__(
        self,
        make_arguments: Callable[[Path], Sequence[str]],
        is_shown: bool,
        place: Path | None = None,
    ) -> None:
        if place is not None:
            place = next(folder for folder in (place, *place.parents) if folder.is_dir())
        self._folder = TemporaryDirectory(prefix=".mjfleet-", dir=place)
        folder = Path(self._folder.name)
        try:
            command = python_module(__name__, str(folder), *make_arguments(folder))
            sys.stdout.flush()
            stdout = None if is_shown and not is_notebook() else subprocess.DEVNULL
            stderr = None if is_shown else KEEP
            self._child = ChildProcess(command, stdout=stdout, stderr=stderr)
        except BaseException:
            self._folder.cleanup()
            raise
        self.pid = self._child.pid
        self.errors = ""
        """What it has written to standard error, once it has ended; empty if that was shown."""
        self._code: int | None = None

    @property
    def exit_code(self) -> int | None:
        """Its exit code, 128 and the signal's number if a signal ended it; None while it runs."""
        if self._code is None and (code := self._child.exit_code()) is not None:
            self._end(code)
        return self._code

    def stop(self) -> None:
        """Ask it to save and stop after this iteration; asked again, it stops at once."""
        if self.exit_code is None:
            self._child.send_signal(signal.SIGINT)

    def wait(
        self, seconds: float = math.inf, on_look: Callable[[], object] = lambda: None
    ) -> int | None:
        """Wait until it has ended, or for so many seconds; return `exit_code`.

        KeyboardInterrupt, Ctrl-C or a notebook's "interrupt kernel", is passed on to it.
        """
        deadline = time.monotonic() + seconds
        while self.exit_code is None and time.monotonic() < deadline:
            try:
                on_look()
                self._child.wait(min(LOOK_SECONDS, max(0.0, deadline - time.monotonic())))
            except KeyboardInterrupt:
                self.stop()
        return self._code

    def raise_mistake(self) -> None:
        """Raise the UserError that the command has ended with, if it has."""
        if self._code == MISTAKE:
            raise UserError(self._mistake or self.errors or "the arguments are wrong, see above")

    def kill(self) -> None:
        """End it at once, if it runs."""
        if self.exit_code is None:
            self._end(-signal.SIGKILL)

    def _end(self, code: int) -> None:
        self.errors, self._mistake = self._child.errors().strip(), self._child.mistake()
        self._child.end()
        self._folder.cleanup()
        self._code = code if code >= 0 else 128 - code


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def main() -> None:
    """Run a command: the folder for its files, then the command's arguments.

    When this process's parent is gone, training saves and stops; other commands end at once.
    """
    folder, *arguments = sys.argv[1:]
    parent = int(os.environ[PARENT_VARIABLE])
    if arguments[0] == "train":
        stop_with_parent(parent)
    else:
        die_with_parent()

    del os.environ[PARENT_VARIABLE]  # Curves are drawn: somebody looks at them.
    try:
        sys.exit(run_command(mjfleet, arguments))
    finally:
        if os.getppid() != parent:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
