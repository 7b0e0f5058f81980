"""Watches this host's workers by records of failures, processes, heartbeats, in the host agent."""

import os
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from mjfleet.rl.phase import Phase
from mjfleet.worker.failure_record import (
    SECONDARY_SECONDS,
    Failure,
    hang_message,
    only_waits,
    read_failures,
)
from mjfleet.worker.heartbeat import HangDetector, Heartbeat
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.worker_args import Outcome, WorkerArgs

ALONE_SECONDS = SECONDARY_SECONDS + 1.0  # For which a secondary failure waits for its cause.
STACKS_SECONDS = 3.0  # How long workers may take to write their stacks.


class WorkerWatchdog:
    """What is known of each worker of this host. It is made before any of them starts."""

    def __init__(self, args: WorkerArgs) -> None:
        self._args = args
        self._run_dir = Path(args.run_dir)
        self._limit: float = args.config["hang_timeout"]
        self._ranks = [args.rank_of(local_rank) for local_rank in range(len(args.devices))]
        self._hearts = [Heartbeat.in_file(args.heartbeat_file(r.local_rank)) for r in self._ranks]
        self._detector = HangDetector(self._hearts, self._limit)

    @property
    def has_begun(self) -> bool:
        return all(heart.has_begun for heart in self._hearts)

    @property
    def outcome(self) -> Outcome | None:
        """How training ended, once all workers are done."""
        if any(heart.phase != Phase.DONE for heart in self._hearts):
            return None
        return Outcome(self._hearts[0].stopped_by or None)

    def failure(self) -> Failure | None:
        """Return why a worker of this host has failed, if one has."""
        if found := self._recorded() or self._ended():
            return found
        return self._hang() if self._detector.hangs() else None

    def is_gone(self) -> bool:
        return all(_state(heart.pid)[0] in "ZX" for heart in self._hearts if heart.pid)

    def _recorded(self) -> Failure | None:
        """Return what a worker has written. A secondary failure waits for its cause."""
        found = read_failures(self._run_dir)
        if not found or (found[0].is_secondary and time.time() - found[0].time < ALONE_SECONDS):
            return None
        return found[0]

    def _ended(self) -> Failure | None:
        """Return the failure of a worker that has ended too early and left no record."""
        for rank, heart in zip(self._ranks, self._hearts, strict=True):
            state, status = _state(heart.pid) if heart.pid else ("R", 0)
            # A worker is done, or writes its record, before it ends: so look after that.
            if state not in "ZX" or heart.phase == Phase.DONE:
                continue
            if any(failure.rank == rank.rank for failure in read_failures(self._run_dir)):
                continue
            kind, message = "Exited", "its process is gone"
            if os.WIFSIGNALED(status):
                kind, message = "Killed", killed_by(os.WTERMSIG(status))
            elif state == "Z":
                code = os.waitstatus_to_exitcode(status)
                message = f"its process ended with code {code} and left no record of an exception"
            failure = Failure.seen(kind, message, self._args, rank, heart)
            failure.write(self._run_dir)
            return failure
        return None

    def _hang(self) -> Failure | None:
        """Record all stacks; return the failure of the worker that others wait for, if here."""
        # Before stacks are asked for: a process that was only stopped continues then.
        is_stopped = [_state(heart.pid)[0] == "T" for heart in self._hearts]
        silences = [heart.silence for heart in self._hearts]
        stacks = self._stacks()
        idle = [
            heart.phase == Phase.DONE or (only_waits(stack) and not stopped)
            for heart, stack, stopped in zip(self._hearts, stacks, is_stopped, strict=True)
        ]
        if self._args.meeting and all(idle):
            self._detector.start_again()
            return None
        first = min(self._ranks, key=lambda r: (idle[r.local_rank], -silences[r.local_rank]))
        found: dict[Rank, Failure] = {}
        for rank, heart, stack in zip(self._ranks, self._hearts, stacks, strict=True):
            message = hang_message(self._limit, stack) if heart.pid else "its process never started"
            if is_stopped[rank.local_rank]:
                message += "; its process was stopped by a signal (SIGSTOP)"
            seen = Failure.seen("Hang", message, self._args, rank, heart)
            found[rank] = replace(seen, traceback=stack, is_secondary=rank != first)
            found[rank].write(self._run_dir)
        return found[first]

    def _stacks(self) -> list[str]:
        """Ask every worker where its threads are; return "" where one cannot answer."""
        files = [self._args.stacks_file(rank.local_rank) for rank in self._ranks]
        for file in files:
            if file.exists():
                os.truncate(file, 0)
        for pid in filter(None, [heart.pid for heart in self._hearts]):
            for number in (signal.SIGQUIT, signal.SIGCONT):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        deadline = time.monotonic() + STACKS_SECONDS
        texts, before = [""] * len(files), [""]
        while time.monotonic() < deadline and not (all(texts) and texts == before):
            time.sleep(0.05)
            before, texts = texts, [file.read_text() if file.exists() else "" for file in files]
        return texts


def _state(pid: int) -> tuple[str, int]:
    """Return a process's state, "X" if it is gone, and at "Z" its wait status; from proc(5)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0
    return fields[0], int(fields[49])


def killed_by(number: int) -> str:
    hint = {
        signal.SIGKILL: ", possibly out of memory (`dmesg` would say)",
        signal.SIGBUS: ", possibly out of shared memory or disk",
    }.get(signal.Signals(number), "")
    return f"killed by {signal.Signals(number).name}{hint}"
