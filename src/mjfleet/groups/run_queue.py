"""Trains and shows the members of a group, as many at once as there are shares. In the launcher.

Each member is a child process `train` with an ordinary run directory. What the members are for,
seeds or the trials of a sweep, is decided by the `Members` that are asked.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol, Self

from mjfleet.config import TrainConfig
from mjfleet.errors import Stopped
from mjfleet.groups.device_shares import Share
from mjfleet.runs.run_json import RECORD_FILE, read_record
from mjfleet.utils.child_process import ChildProcess, python_module
from mjfleet.utils.console import print_line, printable
from mjfleet.utils.progress import erase_wrapped
from mjfleet.utils.safe_read import open_regular
from mjfleet.utils.wait_until import wait_until
from mjfleet.worker.stop_signals import StopRequest

LOOK_SECONDS = 0.2
REFRESH_SECONDS = 1.0
END_SECONDS = 10.0  # For members to end after a second signal, before they are killed.
MISTAKE = 2  # The exit code of `train` after a mistake of the user's.
LOG_BYTES = 2**40
MESSAGE_BYTES = 2**16  # Of a log's end that are read.


@dataclass(frozen=True)
class Member:
    """A run of the group."""

    name: str  # Of its run directory in the group's folder.
    flags: tuple[str, ...] = ()  # Of `train`, besides those of all members, when it begins.
    resume_flags: tuple[str, ...] = ()  # The same when it goes on with its run directory.


@dataclass(frozen=True)
class Ending:
    """How a member's process ended."""

    status: Literal["finished", "stopped", "failed"]
    message: str = ""  # Why it failed, in one line or more.
    is_mistake: bool = False  # Whether the user's flags were wrong; no run directory is left.


class Members(Protocol):
    """Says which members to train, and hears of them. Its methods are called one at a time."""

    def next_member(self) -> Member | None:
        """Return the member to train next, or None: none now, and no more once all have ended.

        It is called again and again while a share is free.
        """

    def look(self, running: Sequence["RunningMember"]) -> None:
        """See the members that are being trained, a few times per second; it may stop some."""

    def ended(self, member: Member, ending: Ending) -> None:
        """Hear that a member's process has ended; raises nothing."""


class RunningMember:
    """A member's process, which ends with this one, however that ends."""

    def __init__(self, member: Member, run_dir: Path, share: Share, command: Sequence[str]) -> None:
        self.member, self.run_dir, self.share = member, run_dir, share
        self.log_file = run_dir.with_name(f"{run_dir.name}.log")
        with self.log_file.open("ab") as log:
            self._begin = log.tell()
            self._child = ChildProcess(command, stdout=log, stderr=log, is_foreign=True)
        self._asked_by: int | None = None

    def stop(self, number: int = signal.SIGTERM, at_once: bool = False) -> None:
        """Ask it, unless it has been asked, to save and stop after this iteration, or `at_once`."""
        if at_once or self._asked_by is None:
            self._asked_by = number
            self._child.send_signal(signal.Signals(number))

    @property
    def last_line(self) -> str:
        """What it has printed last."""
        return self._printed().rpartition("\n")[2]

    @property
    def has_ended(self) -> bool:
        """Whether its process has ended."""
        return self._child.exit_code() is not None

    def end(self) -> Ending:
        """Return how it ended; kill it if it has not."""
        code, how = self._child.exit_code(), self._child.how_it_ended()
        mistake = self._child.mistake()
        self._child.end()
        if code is None or code > 128 or (code < 0 and -code == self._asked_by):
            return Ending("stopped")
        if code == MISTAKE:
            return Ending("failed", mistake or self._printed(), is_mistake=True)
        return Ending("failed", self._cause() or how) if code else Ending("finished")

    def _printed(self) -> str:
        """Return the end of what it has printed."""
        with open_regular(self.log_file, LOG_BYTES) as log:
            log.seek(max(self._begin, os.fstat(log.fileno()).st_size - MESSAGE_BYTES))
            return log.read().decode(errors="replace").strip()

    def _cause(self) -> str:
        """Return the first line of the cause that it has recorded."""
        with suppress(OSError, ValueError):
            *_, last = read_record(self.run_dir).get("attempts") or [{}]
            if last.get("status") == "failed":
                return str(last.get("cause", "")).partition("\n")[0]
        return ""


def run_members(
    folder: Path,
    task: str,
    shares: Sequence[Share],
    members: Members,
    begin: Sequence[str] = (),
) -> int | None:
    """Train members in a folder until there are no more, or until a signal has stopped them.

    The first signal is passed on, so that members save and stop; a second one ends them at once.
    `begin` are flags of `train` for members that begin; one whose run directory exists goes on
    instead.

    Returns:
        The signal, or None.
    """
    free, running, stop = list(shares), list[RunningMember](), StopRequest()

    def let_go(one: RunningMember) -> None:
        running.remove(one)
        free.append(one.share)
        members.ended(one.member, one.end())

    with suppress(Stopped), stop.installed():
        try:
            with stop.deferred():
                while True:
                    for one in [one for one in running if one.has_ended]:
                        let_go(one)
                    if number := stop.check():
                        for one in running:
                            one.stop(number)
                    while free and not number and (member := members.next_member()):
                        run_dir, share = folder / member.name, free.pop(0)
                        command = [*_command(run_dir, task, member, begin), *share.flags]
                        running.append(RunningMember(member, run_dir, share, command))
                    if not running:
                        break
                    members.look(running)
                    time.sleep(LOOK_SECONDS)
        finally:
            for one in running:
                one.stop(stop.received or signal.SIGTERM, at_once=True)
            wait_until(lambda: all(one.has_ended for one in running), END_SECONDS)
            for one in list(running):
                let_go(one)
    return stop.received


def _command(run_dir: Path, task: str, member: Member, begin: Sequence[str]) -> list[str]:
    """Return the command that begins a member, or that goes on with it."""
    if os.path.lexists(run_dir / RECORD_FILE):
        resume = ("--resume", str(run_dir), *member.resume_flags)
        return python_module("mjfleet.cli.train", task, *resume)
    if os.path.lexists(run_dir):
        # It was killed while it made this folder, or this is somebody else's, or has lost its file.
        aside = run_dir.parent / "replaced" / f"{run_dir.name}_{datetime.now():%Y-%m-%d_%H-%M-%S}"
        aside.parent.mkdir(exist_ok=True)
        run_dir.rename(aside)
        print_line(f"{member.name} begins: what was there, without {RECORD_FILE}, is in {aside}")
    where = ("--run-dir", str(run_dir))
    return python_module("mjfleet.cli.train", task, *begin, *where, *member.flags)


class GroupView:
    """Prints lines, and below them how far runs are, on a terminal without --plain."""

    def __init__(self, config: TrainConfig) -> None:
        self._due, self._live, self._is_quiet = 0.0, None, config.quiet
        if sys.stdout.isatty() and not (config.plain or config.quiet):
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(), auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        if self._live:
            self._columns = self._live.console.width
            self._live.start()
            # rich hides the cursor, and a process that is killed could not show it again.
            self._live.console.show_cursor(True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a line, unless --quiet."""
        if not self._is_quiet:
            print_line(text)

    def show(self, running: Sequence[RunningMember], note: str) -> None:
        """Draw what each run has printed last, and a note, unless that was done shortly before."""
        if self._live is None or time.monotonic() < self._due:
            return
        from rich.text import Text

        lines = [f"{one.member.name}: {printable(one.last_line)}" for one in running]
        shown = "\n".join([*lines, note]).rstrip()
        self._columns = erase_wrapped(self._live, self._columns)
        self._live.update(Text(shown, no_wrap=True, overflow="ellipsis"), refresh=True)
        self._due = time.monotonic() + REFRESH_SECONDS
