"""Runs a command of mjfleet's in a child process, and raises here what it has found.

The process of a script or a notebook thus keeps its settings, and may train several runs at once.
"""

import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO

from mjfleet.cli.dispatcher import mjfleet
from mjfleet.config import TrainConfig
from mjfleet.errors import UserError, run_command
from mjfleet.launch.host_names import LOCALHOST, choose_hosts
from mjfleet.utils.child_process import KEEP, ChildProcess, python_module
from mjfleet.utils.parent_death import PARENT_VARIABLE, die_with_parent, stop_with_parent

LOOK_SECONDS = 0.5
MISTAKE = 2  # The exit code after a mistake of the user's.


class CommandProcess:
    """A command that runs, with a folder for files that only it reads.

    Args:
        make_arguments: returns the command's words; it may write files into the folder.
        shows: whether its output is shown here; otherwise nobody sees it.
        place: where that folder is made. None: where temporary files belong.
    """

    def __init__(
        self,
        make_arguments: Callable[[Path], Sequence[str]],
        shows: bool,
        place: Path | None = None,
    ) -> None:
        self._folder = TemporaryDirectory(prefix=".mjfleet-", dir=place)
        folder = Path(self._folder.name)
        self._shown = [0, 0]
        # A notebook shows the run itself, and its standard output has no terminal.
        self._is_relayed = shows and sys.stdout is not sys.__stdout__ and not is_notebook()
        self._shows = shows
        try:
            words = python_module(__name__, str(folder), *make_arguments(folder))
            if shows:
                sys.stdout.flush()
            stdout = None if shows and not (self._is_relayed or is_notebook()) else KEEP
            self._child = ChildProcess(words, stdout=stdout)
        except BaseException:
            self._folder.cleanup()
            raise
        self.pid = self._child.pid
        self._code: int | None = None
        self.has_failed: Callable[[], bool] = lambda: False
        """Whether it has recorded a failure, of which it prints a report."""

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
                self._relay()
                on_look()
                self._child.wait(min(LOOK_SECONDS, max(0.0, deadline - time.monotonic())))
            except KeyboardInterrupt:
                self.stop()
        return self._code

    def raise_mistake(self) -> None:
        """Raise the UserError that the command has ended with, if it has."""
        if self._code == MISTAKE:
            raise UserError(self._mistake or self.errors or "the command line is wrong")

    def kill(self) -> None:
        """End it at once, if it runs."""
        if self.exit_code is None:
            self._end(128 + signal.SIGKILL)

    def _end(self, code: int) -> None:
        self._relay(is_over=True, is_failure=code not in (0, MISTAKE) and 0 < code <= 128)
        self.errors = self._child.errors().strip()
        """What it has written to standard error."""
        self._mistake = self._child.mistake()
        self._child.end()
        self._folder.cleanup()
        self._code = code if code >= 0 else 128 - code

    def _relay(self, is_over: bool = False, is_failure: bool = False) -> None:
        """Show what is new of its output. What it says of a failure is in the exception instead."""
        if not self._shows:
            return
        if self._is_relayed:
            self._write(0, self._child.output(), sys.stdout, is_over)
        data = self._child.errors().encode()
        # It records a failure before it prints it: what was read before was printed before.
        if not (is_failure or self.has_failed() or self._child.mistake()):
            self._write(1, data, sys.stderr, is_over)

    def _write(self, i: int, data: bytes, stream: TextIO, is_over: bool) -> None:
        end = len(data) if is_over else data.rfind(b"\n") + 1
        if end > self._shown[i]:
            stream.write(data[self._shown[i] : end].decode(errors="replace"))
            stream.flush()
            self._shown[i] = end


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def place_for_workers(config: TrainConfig) -> Path | None:
    """Return where a folder is made that workers read: for other hosts, on the log root's disk."""
    if choose_hosts(config, os.environ) == [LOCALHOST]:
        return None
    root = Path(config.log_root).absolute()
    return next(folder for folder in (root, *root.parents) if folder.is_dir())


def main() -> None:
    """Run a command: the folder for its files, then the command's words.

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
