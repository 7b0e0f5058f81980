"""Runs a command of mjfleet's in a process of its own: imports, GPU and signals stay out of ours.

The module is also that process's main module.
"""

import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryFile, gettempdir

from mjfleet.cli.dispatcher import mjfleet
from mjfleet.cli.run_command import run_and_exit
from mjfleet.errors import UserError
from mjfleet.utils.child_process import KEEP, ChildProcess, python_module
from mjfleet.utils.parent_death import PARENT_VARIABLE, die_with_parent, stop_with_parent

LOOK_SECONDS = 0.5
MISTAKE = 2  # The exit code after a mistake of the user's.
FILES = "FILES:"
"""In an argument, the folder of the command's own files."""


class CommandProcess:
    """A command that runs.

    Where it `is_shown`, a notebook gets only warnings and errors. `files` have the content of files
    that only it reads, by path in a folder that is removed afterwards. That is made in `place` or
    the nearest folder above it that exists; None: where temporary files belong.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        is_shown: bool,
        files: Mapping[str, bytes] | None = None,
        place: Path | None = None,
    ) -> None:
        place = place or Path(gettempdir())
        while not place.is_dir():
            place = place.parent
        self._folder = place / f".mjfleet-{token_hex(8)}"
        arguments = [argument.replace(FILES, f"{self._folder}/") for argument in arguments]
        sys.stdout.flush()
        with TemporaryFile() as given:
            pickle.dump((self._folder, files or {}), given)
            given.seek(0)
            self._child = ChildProcess(
                python_module(__name__, *arguments),
                stdin=given,
                stdout=None if is_shown and not is_notebook() else subprocess.DEVNULL,
                stderr=None if is_shown else KEEP,
            )
        self.errors = ""
        """What it has written to standard error, once it has ended; empty if that was shown."""
        self._code: int | None = None

    @property
    def exit_code(self) -> int | None:
        """Its exit code, 128 and the signal's number if a signal ended it; None while it runs."""
        if self._code is None and (code := self._child.exit_code()) is not None:
            self.errors, self._mistake = self._child.errors().strip(), self._child.mistake()
            self._child.end()
            shutil.rmtree(self._folder, ignore_errors=True)  # It is there if it was killed.
            self._code = code if code >= 0 else 128 - code
        return self._code

    def stop(self) -> None:
        """Ask it to save and stop after this iteration; asked again, it stops at once."""
        if self.exit_code is None:
            self._child.send_signal(signal.SIGINT)

    def wait(
        self, seconds: float = math.inf, on_look: Callable[[], object] = lambda: None
    ) -> int | None:
        """Wait until it has ended, or for so many seconds; return `exit_code`.

        Ctrl-C is passed on to it. UserError if it has found a mistake of the user's.
        """
        deadline = time.monotonic() + seconds
        while self.exit_code is None and time.monotonic() < deadline:
            try:
                on_look()
                self._child.wait(min(LOOK_SECONDS, max(0.0, deadline - time.monotonic())))
            except KeyboardInterrupt:
                self.stop()
        if self._code == MISTAKE:
            raise UserError(self._mistake or self.errors or "the arguments are wrong, see above")
        return self._code


def is_notebook() -> bool:
    """Return whether this code runs in a notebook, whose output the front end shows."""
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


def main() -> None:
    """Run a command of mjfleet's, with the files that standard input holds.

    When this process's parent is gone, training saves and stops; other commands end at once.
    """
    if sys.argv[1] == "train":
        stop_with_parent(int(os.environ[PARENT_VARIABLE]))
    else:
        die_with_parent()
    del os.environ[PARENT_VARIABLE]  # Curves are drawn: somebody looks at them.
    folder, files = pickle.load(sys.stdin.buffer)
    folder.mkdir(mode=0o700)
    try:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        run_and_exit(mjfleet)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
