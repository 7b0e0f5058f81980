"""Trains the members of a group, as many at once as there are shares. Runs in the launcher.

A member is a child process `train` with a run directory of its own: one for each seed of a seed
group, or each trial of a sweep.
"""

import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TimeRemainingColumn

from mjfleet.config import TrainConfig
from mjfleet.errors import Stopped
from mjfleet.groups.device_shares import Share
from mjfleet.groups.group_folder import GroupFolder
from mjfleet.runs.config_yaml import placement_flags
from mjfleet.runs.metrics_csv import completed_iterations
from mjfleet.runs.run_json import read_record
from mjfleet.utils.child_process import ChildProcess, python_module
from mjfleet.utils.console import print_line
from mjfleet.utils.wait_until import wait_until
from mjfleet.worker.stop_signals import StopRequest

LOOK_SECONDS = 0.2
END_SECONDS = 10.0  # For members to end after a second signal, before they are killed.
MISTAKE = 2  # The exit code of `train` after a mistake of the user's.


@dataclass(frozen=True)
class Member:
    """A run of the group."""

    name: str  # Of its run directory in the group's folder.
    flags: tuple[str, ...]  # Of `train`, besides those of all members.


class MemberProcess:
    """The process that trains a member; it dies with this one."""

    def __init__(self, member: Member, folder: Path, share: Share, command: Sequence[str]) -> None:
        self.member, self.share = member, share
        self.run_dir, self.log_file = folder / member.name, folder / f"{member.name}.log"
        self.status: Literal["running", "finished", "stopped", "failed", "refused"] = "running"
        """`refused`: `train` found a mistake of the user's."""
        self.cause = self.kind = ""
        """Why it failed or was refused, and the kind of failure if run.json names it."""
        self._signal = 0
        with self.log_file.open("ab") as log:
            self._child = ChildProcess(command, stdout=log, stderr=log, is_foreign=True)

    @property
    def has_ended(self) -> bool:
        """Whether its process has ended."""
        return self._child.exit_code() is not None

    def stop(self, number: int = signal.SIGTERM, at_once: bool = False) -> None:
        """Ask it, once, to save and stop after this iteration, or to stop `at_once`."""
        if at_once or not self._signal:
            self._signal = number
            self._child.send_signal(signal.Signals(number))

    def close(self) -> None:
        """Kill it if it has not ended; then `status`, `cause` and `kind` are known."""
        code, how, mistake = (
            self._child.exit_code(), self._child.how_it_ended(), self._child.mistake(),
        )  # fmt: skip
        self._child.end()
        if code is None or code > 128 or -code == self._signal != 0:
            self.status = "stopped"
        elif code == 0:
            self.status = "finished"
        elif code == MISTAKE:
            self.status, self.cause = "refused", mistake or f"see {self.log_file}"
        else:
            self.status, self.cause = "failed", how
            with suppress(OSError, ValueError):
                *_, last = read_record(self.run_dir).get("attempts") or [{}]
                if last.get("status") == "failed":
                    self.cause = str(last.get("cause")).partition("\n")[0]
                    self.kind = str(last.get("kind"))


class Members:
    """The members of a group that wait to be trained; a subclass may decide on them later.

    Its methods are called one at a time.
    """

    def __init__(self, waiting: Sequence[Member]) -> None:
        self._waiting = list(waiting)
        self.done: list[MemberProcess] = []

    @property
    def mistake(self) -> str:
        """The mistake of the user's for which all members so far were refused, or empty text."""
        is_common = {process.status for process in self.done} == {"refused"}
        return self.done[0].cause if is_common else ""

    def next_member(self) -> Member | None:
        """Return the member to train next, or None: none now, and no more once all have ended.

        It is called again and again while a share is free.
        """
        return self._waiting.pop(0) if self._waiting and not self.mistake else None

    def look(self, running: Sequence[MemberProcess]) -> None:
        """See the members that are being trained, a few times per second; it may stop some."""

    def ended(self, process: MemberProcess) -> None:
        """Take note of how a member ended, and print it."""
        self.done.append(process)
        if not self.mistake:
            why = f": {process.cause}" if process.cause else ""
            print_line(f"{process.member.name} {process.status}{why}")


def run_members(
    group: GroupFolder, config: TrainConfig, shares: Sequence[Share], members: Members
) -> int | None:
    """Train members until there are no more, or until a signal has stopped them.

    The first signal is passed on, so that members save and stop; a second one ends them at once.

    Args:
        group: the folder in which a member's run directory is begun or continued.
        config: what all members have in common, as in the group's config.yaml.
        shares: the devices of each member that trains at the same time.
        members: decides which members there are.

    Returns:
        The signal, or None.
    """
    common = [group.task, "--config", str(group.config_file), *placement_flags(config)]
    common += ["--as-trained"] * config.as_trained
    length = config.agent.max_iterations if config.total_steps is None else None
    free, running, stop = list(shares), dict[MemberProcess, TaskID](), StopRequest()
    with suppress(Stopped), stop.installed(), _progress_bars(config) as progress:
        try:
            with stop.deferred():
                while True:
                    for process in [process for process in running if process.has_ended]:
                        process.close()
                        progress.remove_task(running.pop(process))
                        free.append(process.share)
                        members.ended(process)
                    if number := stop.check():
                        for process in running:
                            process.stop(number)
                    while free and not number and (member := members.next_member()):
                        where = ("--run-dir", str(group.path / member.name))
                        words = *common, *where, *member.flags, *free[0].flags
                        command = python_module("mjfleet.cli.train", *words)
                        process = MemberProcess(member, group.path, free.pop(0), command)
                        running[process] = progress.add_task(member.name, total=length)
                        if not config.quiet:
                            print_line(f"{member.name} on {process.share}: {process.log_file}")
                    if not running:
                        break
                    members.look([*running])
                    for process, bar in running.items():
                        progress.update(bar, completed=completed_iterations(process.run_dir))
                    progress.refresh()
                    time.sleep(LOOK_SECONDS)
        finally:
            for process in running:
                process.stop(stop.received or signal.SIGTERM, at_once=True)
            wait_until(lambda: all(process.has_ended for process in running), END_SECONDS)
            for process in running:
                process.close()
    return stop.received


def _progress_bars(config: TrainConfig) -> Progress:
    """Return what shows a bar for each member, on a terminal without --plain and --quiet."""
    columns = "{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    is_shown = sys.stdout.isatty() and not (config.plain or config.quiet)
    # Members die with this process, which therefore must not have a thread that draws.
    return Progress(*columns, disable=not is_shown, auto_refresh=False, transient=True)
