"""Runs a command of mjfleet's in a process of its own: imports, GPU and signals stay out of ours.

The module is also that process's main module.
"""

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp

from mjfleet.cli.dispatcher import mjfleet
from mjfleet.cli.run_command import run_and_exit
from mjfleet.errors import UserError
from mjfleet.utils.child_process import (
    KEEP,
    MISTAKE,
    ChildProcess,
    python_module,
    wait_for_own_children,
)
from mjfleet.utils.made_folders import remove_empty
from mjfleet.utils.parent_death import PARENT_VARIABLE, die_with_parent, stop_with_parent

COMMAND_POLL_SECONDS = 0.5


def folder_of(files: Mapping[str, bytes], place: Path) -> Path:
    """Write the files that a command alone reads, by path; return their folder, for its arguments.

    It is made in `place`; UserError if it cannot be.
    """
    try:
        folder = Path(mkdtemp(prefix=".mjfleet-", dir=place))
    except OSError as error:
        raise UserError(f"no folder can be made in {place}: {error.strerror}.") from None
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def _remove(folder: str, made: int) -> None:
    """Remove a command's folder, and of those around it so many, from inside, if they are empty."""
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
        remove_empty(Path(folder).parents[:made])


class CommandProcess:
    """A command that runs.

    Where it `is_shown`, a notebook gets only warnings and errors. A `folder` that `folder_of` has
    made is removed when it has ended, and, if they are empty, as many folders around it as were
    `made` for the run.
    """

    def __init__(
        self, arguments: Sequence[str], is_shown: bool, folder: Path | None = None, made: int = 0
    ) -> None:
        self.arguments, self._made = arguments, (str(folder or ""), made)
        sys.stdout.flush()
        wait_for_own_children()
        self._child = ChildProcess(
            python_module(__name__, *map(str, self._made), *arguments),
            stdout=None if is_shown and not is_notebook() else subprocess.DEVNULL,
            stderr=None if is_shown else KEEP,
            can_stop=True,
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
            _remove(*self._made)  # They are there if it was killed.
            self._code = code if code >= 0 else 128 - code
        return self._code

    def stop(self) -> None:
        """Ask it to save and stop after this iteration; asked again, it stops at once."""
        if self.exit_code is None:
            self._child.stop()

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
                self._child.wait(min(COMMAND_POLL_SECONDS, max(0.0, deadline - time.monotonic())))
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
    """Run a command of mjfleet's, and remove what was made for it.

    When this process's parent is gone, training saves and stops; other commands end at once.
    """
    folder, made = sys.argv.pop(1), int(sys.argv.pop(1))
    try:
        # Until training handles it, SIGTERM would end this process before it removes the folder.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        if sys.argv[1] == "train":
            stop_with_parent(int(os.environ[PARENT_VARIABLE]))
        else:
            die_with_parent()
        del os.environ[PARENT_VARIABLE]  # Curves are drawn: somebody looks at them.
        run_and_exit(mjfleet)
    finally:
        _remove(folder, made)


if __name__ == "__main__":
    main()
