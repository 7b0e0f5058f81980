"""Starts, watches and ends a child process. Runs in the parent; imports nothing heavy."""

import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import IO, Self

from mjfleet.utils.parent_death import (
    AT_ONCE,
    MISTAKE_VARIABLE,
    PARENT_VARIABLE,
    STOP_VARIABLE,
    die_with_parent,
)
from mjfleet.utils.wait_until import wait_until

KEEP = -100
"""For `stdout` and `stderr`: keep the output in a temporary file, for `output` and `errors`."""
UNKILLABLE_SECONDS = 2.0
"""How long a process may take to end after SIGKILL; one inside a driver may never do so."""
MISTAKE = 2  # The exit code of a command of ours after a mistake of the user's.


def wait_for_own_children() -> None:
    """Have Linux keep how a child has ended until this process asks, as ChildProcess does.

    A process may inherit from its parent that SIGCHLD is ignored; Linux then reaps its children
    itself. Only the main thread can change that; in another one, this does nothing.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


@contextmanager
def _keeping_interrupts() -> Iterator[None]:
    """Let processes that begin in the block receive SIGINT once `run_command` unblocks it.

    Python would end by a message of its own while it starts. The background job of a script ignores
    SIGINT, and so would they until they handle it, which the main thread alone can change.
    """
    is_main = threading.current_thread() is threading.main_thread()
    is_ignored = is_main and signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    if is_ignored:
        signal.signal(signal.SIGINT, lambda number, frame: None)  # Nothing happens here.
    try:
        yield
    finally:
        if is_ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def python_module(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module; nothing is imported from the current directory."""
    return [sys.executable, "-P", "-m", module, *arguments]


class ChildProcess:
    """A child process in a process group of its own, which a terminal's signals do not reach.

    Use it as a context manager: when the block ends, nothing of the group is left. `stdin` and
    `stdout` are this side of a pipe where PIPE was asked for. `peak_memory` is known after `end`:
    the greatest resident set, in bytes, of the process or of any child that it has waited for.

    Args:
        command: program and arguments. A module of ours begins with `die_with_parent()`.
        environ: environment variables besides those of this process; None removes one.
        stdin: as in `subprocess`, like `stdout` and `stderr`, which may also be KEEP.
        new_session: whether the child gets a session too. Linux divides the processor among
            sessions first (sched(7), autogroup).
        is_foreign: whether the program is not ours. It then dies with this process as well, which
            must have no other threads.
        can_stop: whether it is a command of ours that saves and stops, see `stop`.

    Raises:
        OSError: the process cannot be started, or there is no room for a temporary file.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str | None] | None = None,
        stdin: int | IO[bytes] | None = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = KEEP,
        stderr: int | IO[bytes] | None = KEEP,
        new_session: bool = True,
        is_foreign: bool = False,
        can_stop: bool = False,
    ) -> None:
        pid = os.getpid()
        variables = {**os.environ, **(environ or {}), PARENT_VARIABLE: str(pid)}
        variables |= {STOP_VARIABLE: str(pid)} if can_stop else {}
        with ExitStack() as files:
            self._kept = [
                files.enter_context(tempfile.TemporaryFile()) if stream == KEEP else None
                for stream in (stdout, stderr)
            ]
            self._mistake = files.enter_context(tempfile.TemporaryFile())
            variables[MISTAKE_VARIABLE] = f"/proc/{pid}/fd/{self._mistake.fileno()}"
            with _keeping_interrupts() if can_stop else nullcontext():
                self._process = subprocess.Popen(
                    command,
                    stdin=stdin,
                    stdout=self._kept[0] or stdout,
                    stderr=self._kept[1] or stderr,
                    env={name: value for name, value in variables.items() if value is not None},
                    start_new_session=new_session,
                    process_group=None if new_session else 0,
                    preexec_fn=partial(die_with_parent, pid) if is_foreign else None,  # noqa: PLW1509
                )
            self._files = files.pop_all()
        self.pid = self._process.pid
        self.stdin, self.stdout = self._process.stdin, self._process.stdout
        self.peak_memory = 0
        self.stopped_by: int | None = None
        """The newest signal of `stop`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def exit_code(self, option: int = os.WNOHANG) -> int | None:
        """Return its exit code, minus the number of a signal, or None while it runs.

        The process is not reaped: the number of its group stays its own until `end`.
        """
        if self._process.returncode is not None:
            return self._process.returncode
        state = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | option)
        if state is None:
            return None
        return state.si_status if state.si_code == os.CLD_EXITED else -state.si_status

    def wait(self, seconds: float = math.inf) -> int | None:
        """Wait until it has ended, or for so many seconds; return what `exit_code` does."""
        if seconds == math.inf:  # A benchmark wants to know when, to the millisecond.
            return self.exit_code(option=0)
        wait_until(lambda: self.exit_code() is not None, seconds)
        return self.exit_code()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process; nothing after `end`."""
        if self._process.returncode is None:
            os.kill(self.pid, number)

    def stop(self, number: int = signal.SIGINT, *, again: bool = True) -> None:
        """Ask it to save and stop; asked `again`, it stops at once."""
        if self.stopped_by is None or again:
            self.stopped_by = number if self.stopped_by is None else AT_ONCE
            self.send_signal(signal.Signals(self.stopped_by))

    def end(self) -> None:
        """Kill the process and all that it has started, and close its files."""
        if self._process.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)
            if self.wait(UNKILLABLE_SECONDS) is not None:
                _, status, usage = os.wait4(self.pid, 0)
                self._process.returncode = os.waitstatus_to_exitcode(status)
                self.peak_memory = usage.ru_maxrss * 1024
        self._files.close()
        for pipe in (self.stdin, self.stdout, self._process.stderr):
            with suppress(BrokenPipeError):  # The child has not read all of what was written.
                if pipe:
                    pipe.close()

    def output(self) -> bytes:
        """Return what it has written to standard output so far; not after `end`."""
        return _read(self._kept[0])

    def errors(self) -> str:
        """Return what it has written to standard error so far; not after `end`."""
        return _read(self._kept[1]).decode(errors="replace")

    def mistake(self) -> str:
        """Return the text of the UserError with which a command of ours ended; not after `end`.

        Empty: there is none, or the command line could not be parsed: `errors` has that.
        """
        return _read(self._mistake).decode(errors="replace")

    def how_it_ended(self) -> str:
        """Return by which exit code or signal it has ended."""
        code = self.exit_code() or 0
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"


def _read(file: IO[bytes] | None) -> bytes:
    """Read all of a file without moving the place where the child writes."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0) if file else b""
