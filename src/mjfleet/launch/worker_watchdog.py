"""Watches the workers of this host: who is done, who failed, who hangs. Runs in the host agent.

It looks at three things: the records of failures that workers write, their processes, and their
heartbeats.
"""

import os
import select
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from mjfleet.rl.phase import Phase
from mjfleet.worker.failure_record import (
    SECONDARY_SECONDS,
    Failure,
    hang_message,
    only_waits,
    read_failures,
)
from mjfleet.worker.heartbeat import HangDetector, Heartbeat
from mjfleet.worker.worker_args import Outcome, WorkerArgs

ALONE_SECONDS = SECONDARY_SECONDS + 1.0
"""How long a secondary failure may stay the only one before it is reported."""
NAP_SECONDS = 0.02
STACKS_SECONDS = 3.0
"""How long workers may take to write their stacks."""
STATES = {
    "T": "was stopped by a signal (SIGSTOP)",
    "D": "waits for a device or a disk and cannot be interrupted",
}
"""Process states, by their letters in proc(5), that explain why a worker does not move."""


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """What the launcher is told of the workers of a host."""

    has_begun: bool
    """Whether training has begun on all of them."""
    hangs: bool
    """Whether none of them has moved for the hang time-out."""


class WorkerWatchdog:
    """What is known of each worker of this host.

    Args:
        args: what the workers do. The files of their heartbeats are made here, before any starts.
    """

    def __init__(self, args: WorkerArgs) -> None:
        self.all_hang = False
        """Whether no worker of any host moves: the launcher says so. Only then it is a hang."""
        self._args = args
        self._run_dir = Path(args.run_dir)
        self._limit: float = args.config["hang_timeout"]
        self._ranks = [args.rank_of(local_rank) for local_rank in range(len(args.devices))]
        self._heartbeats = [
            Heartbeat.in_file(args.heartbeat_file(rank.local_rank)) for rank in self._ranks
        ]
        self._ends: dict[int, int] = {}
        self._detector = HangDetector(self._heartbeats, self._limit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for end in self._ends.values():
            os.close(end)

    @property
    def status(self) -> WorkerStatus:
        """What the launcher needs to know."""
        return WorkerStatus(has_begun=self.has_begun, hangs=self._detector.hangs())

    @property
    def has_begun(self) -> bool:
        """Whether training has begun."""
        return all(heartbeat.has_begun for heartbeat in self._heartbeats)

    @property
    def outcome(self) -> Outcome | None:
        """How training ended, once all workers are done."""
        if any(heartbeat.phase != Phase.DONE for heartbeat in self._heartbeats):
            return None
        return Outcome(self._heartbeats[0].iteration, self._heartbeats[0].stopped_by)

    def wait(self, seconds: float) -> None:
        """Wait, but no longer once a worker has ended: it has to be seen before it is reaped."""
        time.sleep(NAP_SECONDS)  # A caller in a loop must not take a processor.
        if not self.has_begun:
            seconds = 0.0  # The launcher needs to know at once that it has.
        poll = select.poll()
        for local_rank, heartbeat in enumerate(self._heartbeats):
            if heartbeat.pid and local_rank not in self._ends:
                try:
                    self._ends[local_rank] = os.pidfd_open(heartbeat.pid)
                except OSError:  # It is gone, or Linux is older than 5.3.
                    seconds = min(seconds, NAP_SECONDS)
        for local_rank, end in self._ends.items():
            if self._heartbeats[local_rank].phase != Phase.DONE:
                poll.register(end, select.POLLIN)
        poll.poll(1000 * seconds)

    def failure(self) -> Failure | None:
        """Return why the run has failed, if it has."""
        hangs = self.all_hang and self._detector.hangs()
        return self._recorded() or self._ended() or (self._hanging() if hangs else None)

    def is_gone(self) -> bool:
        """Return whether every worker that has started has ended."""
        return all(
            not heartbeat.pid or _has_ended(_state(heartbeat.pid)) for heartbeat in self._heartbeats
        )

    def _recorded(self) -> Failure | None:
        """What a worker has written. A secondary failure waits for its cause."""
        found = read_failures(self._run_dir)
        if not found or (found[0].is_secondary and time.time() - found[0].time < ALONE_SECONDS):
            return None
        return found[0]

    def _ended(self) -> Failure | None:
        """A worker whose process has ended too early and left no record."""
        for rank, heartbeat in zip(self._ranks, self._heartbeats, strict=True):
            if not heartbeat.pid or heartbeat.phase == Phase.DONE:
                continue
            state = _state(heartbeat.pid)
            # A worker is done, or writes its record, before it ends: so look again.
            if not _has_ended(state) or heartbeat.phase == Phase.DONE:
                continue
            if any(failure.rank == rank.rank for failure in read_failures(self._run_dir)):
                continue
            kind, message = _last_words(None if state is None else state[1])
            failure = Failure.seen(kind, message, self._args, rank, heartbeat)
            failure.write(self._run_dir)
            return failure
        return None

    def _hanging(self) -> Failure:
        """Record the stacks of all workers; return the failure of the one that others wait for."""
        states = [
            _state(heartbeat.pid) if heartbeat.pid else None for heartbeat in self._heartbeats
        ]
        silences = [heartbeat.silence for heartbeat in self._heartbeats]
        # Before stacks are asked for: a process that was only stopped goes on then.
        found = [
            Failure.seen("Hang", "", self._args, rank, heartbeat)
            for rank, heartbeat in zip(self._ranks, self._heartbeats, strict=True)
        ]
        stacks = self._stacks()
        idle = [only_waits(stack) for stack in stacks]
        first = min(range(len(found)), key=lambda place: (idle[place], -silences[place]))
        # On several hosts, all workers of this one may wait for another's.
        waits = self._args.part is not None and idle[first]
        for place, state in enumerate(states):
            message = hang_message(self._limit, stacks[place])
            if not self._heartbeats[place].pid:
                message = "its process has not started"
            elif state is not None and state[0] in STATES:
                message += f"; its process {STATES[state[0]]}"
            is_secondary = place != first or waits
            found[place] = replace(
                found[place], message=message, traceback=stacks[place], is_secondary=is_secondary
            )
            found[place].write(self._run_dir)
        return found[first]

    def _stacks(self) -> list[str]:
        """Ask every worker where its threads are; empty where one cannot answer."""
        files = [self._args.stacks_file(rank.local_rank) for rank in self._ranks]
        for heartbeat in self._heartbeats:
            for number in (signal.SIGQUIT, signal.SIGCONT):
                if heartbeat.pid:
                    with suppress(ProcessLookupError):
                        os.kill(heartbeat.pid, number)
        deadline = time.monotonic() + STACKS_SECONDS
        texts = [""] * len(files)
        while time.monotonic() < deadline:
            time.sleep(0.05)
            before = texts
            texts = [file.read_text() if file.exists() else "" for file in files]
            if all(texts) and texts == before:
                break
        return texts


def _state(pid: int) -> tuple[str, int] | None:
    """Return a process's state and, once it has ended, its wait status; None: it is gone.

    From proc(5): psutil does not know how the child of another process has ended.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0], int(fields[49])


def _has_ended(state: tuple[str, int] | None) -> bool:
    """Return whether a process is gone, or only waits to be reaped."""
    return state is None or state[0] in "ZX"


def _last_words(status: int | None) -> tuple[str, str]:
    """Return the kind and the message of a failure, from the wait status of its process."""
    if status is None:
        return "Exited", "its process is gone"
    if os.WIFSIGNALED(status):
        return "Killed", killed_by(os.WTERMSIG(status))
    code = os.waitstatus_to_exitcode(status)
    return "Exited", f"its process ended with code {code} and without an exception"


def killed_by(number: int) -> str:
    """Return a death by a signal in words."""
    hint = {
        signal.SIGKILL: ", possibly out of memory (`dmesg` would say)",
        signal.SIGBUS: ", possibly out of shared memory or disk",
    }.get(signal.Signals(number), "")
    return f"killed by {signal.Signals(number).name}{hint}"
