"""Trains the members of a group, as many at once as there are shares. Runs in the launcher.

A member is a child process `train` with a run directory of its own: one for each seed of a seed
group, or each trial of a sweep.
"""

import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TimeRemainingColumn

from mjfleet.config import TrainConfig
from mjfleet.errors import Stopped
from mjfleet.groups.device_shares import Share
from mjfleet.registry import FoundTask
from mjfleet.runs.config_yaml import placement_flags
from mjfleet.runs.metrics_csv import completed_iterations
from mjfleet.runs.run_json import CONFIG_FILE, read_record
from mjfleet.utils.child_process import MISTAKE, ChildProcess, python_module
from mjfleet.utils.console import print_line
from mjfleet.utils.wait_until import wait_until
from mjfleet.worker.stop_signals import StopRequest

MEMBER_POLL_SECONDS = 0.2
MEMBER_END_SECONDS = 10.0  # How long members may take to end after a second signal.


class Member:
    """A run of the group, and the process that trains it, which dies with this one.

    `name` is its run directory's in the group's folder; `flags` are its own, for `train`.
    """

    share: Share
    log_file: Path
    _child: ChildProcess

    def __init__(self, name: str, flags: Sequence[str]) -> None:
        self.name, self.flags = name, flags
        self.status = "waiting"
        """Later `running`, then `finished`, `stopped`, `killed`, `failed`, or `refused` if `train`
        found a mistake of the user's."""
        self.cause = ""
        """Why it failed, or was killed or refused."""

    def start(self, folder: Path, share: Share, common: Sequence[str]) -> None:
        """Begin or continue it in the group's folder, with the arguments of all members."""
        self.share, self.run_dir = share, folder / self.name
        self.status, self.cause, self.log_file = "running", "", folder / f"{self.name}.log"
        arguments = *common, "--run-dir", str(self.run_dir), *self.flags, *share.flags
        command = python_module("mjfleet.cli.train", *arguments)
        with self.log_file.open("ab") as log:
            self._child = ChildProcess(
                command, stdout=log, stderr=log, is_foreign=True, can_stop=True
            )

    @property
    def has_ended(self) -> bool:
        return self._child.exit_code() is not None

    @property
    def iterations(self) -> int:
        """Iterations that are complete; 0 while its metrics.csv cannot be read."""
        with suppress(OSError):
            return completed_iterations(self.run_dir)
        return 0

    def stop(self, number: int = signal.SIGTERM, at_once: bool = False) -> None:
        """Ask it, once, to save and stop after this iteration; asked `at_once` then, stop it."""
        self._child.stop(number, again=at_once)

    def close(self) -> None:
        """Kill its process if it has not ended; then `status` and `cause` are known."""
        code, how, mistake = (
            self._child.exit_code(), self._child.how_it_ended(), self._child.mistake(),
        )  # fmt: skip
        self._child.end()
        if code is None or code > 128 or -code == self._child.stopped_by:
            self.status = "stopped"
        elif code == 0:
            self.status = "finished"
        elif code < 0:
            self.status, self.cause = "killed", how
        elif code == MISTAKE:
            self.status, self.cause = "refused", mistake or f"see {self.log_file}"
        else:
            self.status, self.cause = "failed", how
            with suppress(OSError, ValueError):
                *_, last = read_record(self.run_dir).get("attempts") or [{}]
                if last.get("status") == "failed":
                    self.cause = str(last.get("cause")).partition("\n")[0]


M = TypeVar("M", bound=Member)


def run_members(
    found: FoundTask,
    config: TrainConfig,
    folder: Path,
    shares: Sequence[Share],
    next_member: Callable[[], M | None],
    ended: Callable[[M], object],
    look: Callable[[Sequence[M]], object] = lambda running: None,
) -> int | None:
    """Train members of the group in a folder until there are no more, or a signal has stopped them.

    Return the signal.

    The first signal is passed on, so that members save and stop; a second one ends them at once.
    `next_member` is called while a share is free; None is nothing now, and nothing more once all
    members have ended. `ended` takes note of how a member ended. `look` sees the members that are
    being trained, a few times per second, and may stop some.
    """
    flags = placement_flags(config, found.defaults())
    common = [found.name, "--config", str(folder / CONFIG_FILE), *flags]
    common += ["--as-trained"] * config.as_trained
    length = config.agent.max_iterations if config.total_steps is None else None
    columns = "{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    is_shown = sys.stdout.isatty() and not (config.plain or config.quiet)
    # Members die with this process, which therefore must not have a thread that draws.
    bars = Progress(*columns, disable=not is_shown, auto_refresh=False, transient=True)
    free, running, stop = list(shares), dict[M, TaskID](), StopRequest()
    with suppress(Stopped), stop.installed(), bars:
        try:
            with stop.deferred():
                while True:
                    for member in [member for member in running if member.has_ended]:
                        member.close()
                        bars.remove_task(running.pop(member))
                        free.append(member.share)
                        ended(member)
                    if number := stop.check():
                        for member in running:
                            member.stop(number)
                    while free and not number and (member := next_member()):
                        member.start(folder, free.pop(0), common)
                        running[member] = bars.add_task(member.name, total=length)
                        if not config.quiet:
                            print_line(f"{member.name} on {member.share}: {member.log_file}")
                    if not running:
                        break
                    look([*running])
                    for member, bar in running.items():
                        bars.update(bar, completed=member.iterations)
                    bars.refresh()
                    time.sleep(MEMBER_POLL_SECONDS)
        finally:
            for member in running:
                member.stop(stop.received or signal.SIGTERM, at_once=True)
            wait_until(lambda: all(member.has_ended for member in running), MEMBER_END_SECONDS)
            for member in running:
                member.close()
    return stop.received
