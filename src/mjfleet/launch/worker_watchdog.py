"""The workers of a run on this host, as the launcher sees them: who is done, who failed, who hangs.

torchrunx tells of a failure only after torch has given the other workers half a minute to end, of a
hang never. Here the launcher looks for itself: at records of failures, at the processes, at pulses.
"""

import os
import select
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

from mjfleet.rl.phase import Phase
from mjfleet.worker.failure_record import (
    SECONDARY_SECONDS,
    FailedError,
    Failure,
    innermost,
    only_waits,
    read_failures,
)
from mjfleet.worker.heartbeat import Heartbeat
from mjfleet.worker.in_process_worker import ASLEEP_SECONDS
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.worker_args import Outcome, WorkerArgs

ALONE_SECONDS = SECONDARY_SECONDS + 1.0
"""How long a failure that is secondary may stay the only one."""
NAP_SECONDS = 0.02
STACKS_SECONDS = 3.0
"""How long workers may take to write their stacks."""


class WorkerWatchdog:
    """What the launcher knows of each worker: its pulse and its process."""

    def __init__(self, job: WorkerArgs) -> None:
        """Make the files by which workers share their pulses; before any is started."""
        self.job = job
        self._run_dir = Path(job.run_dir)
        self._limit: float = job.config["hang_timeout"]
        self._ranks = [job.rank_of(local_rank) for local_rank in range(len(job.devices))]
        self._heartbeats = [
            Heartbeat.create(job.heartbeat_file(rank.local_rank)) for rank in self._ranks
        ]
        self._ends: dict[int, int] = {}
        self._looked = self._since = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for end in self._ends.values():
            os.close(end)

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
        """Wait, but not once a worker has ended: it is to be seen before it is reaped."""
        time.sleep(NAP_SECONDS)  # Whoever asks in a loop is not to be busy.
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
        """Why the run has failed, if it has: by what workers wrote, or by what became of them."""
        return self._recorded() or self._ended() or (self._hanging() if self._hangs() else None)

    def ended(self, failure: Failure) -> FailedError:
        """The end of the run that such a failure is."""
        record = self._run_dir / "failures" / f"rank{failure.rank}.json"
        return FailedError(failure, record if record.exists() else None)

    def is_gone(self) -> bool:
        """Whether every worker that has started has ended."""
        return all(
            not heartbeat.pid or _has_ended(_state(heartbeat.pid)) for heartbeat in self._heartbeats
        )

    def _recorded(self) -> Failure | None:
        found = read_failures(self._run_dir)
        if not found or (found[0].is_secondary and time.time() - found[0].time < ALONE_SECONDS):
            return None
        return found[0]

    def _ended(self) -> Failure | None:
        """A worker whose process has ended too early, and without a word."""
        for rank, heartbeat in zip(self._ranks, self._heartbeats, strict=True):
            if not heartbeat.pid or heartbeat.phase == Phase.DONE:
                continue
            state = _state(heartbeat.pid)
            if not _has_ended(state):
                continue
            # It was done, or wrote why, before it ended.
            if heartbeat.phase == Phase.DONE:
                continue
            if any(failure.rank == rank.rank for failure in read_failures(self._run_dir)):
                continue
            kind, message = _last_words(None if state is None else state[1])
            return self._seen(rank, kind, message)
        return None

    def _hangs(self) -> bool:
        """Whether nobody has moved for the hang time-out."""
        before, self._looked = self._looked, time.monotonic()
        if self._looked - before > ASLEEP_SECONDS:
            self._since = self._looked  # We were suspended, and nobody read what workers print.
        if not self._limit or any(heartbeat.is_excused for heartbeat in self._heartbeats):
            return False
        at_work = [heartbeat for heartbeat in self._heartbeats if heartbeat.phase != Phase.DONE]
        return all(heartbeat.hangs(self._limit, self._since) for heartbeat in at_work)

    def _hanging(self) -> Failure:
        """Whoever keeps all others waiting, as the stacks of all tell; each has a record then."""
        states = [
            _state(heartbeat.pid) if heartbeat.pid else None for heartbeat in self._heartbeats
        ]
        silences = [heartbeat.silence for heartbeat in self._heartbeats]
        # Before they are asked: whoever was only stopped goes on then.
        found = [
            Failure.seen("Hang", "", self.job, rank, heartbeat)
            for rank, heartbeat in zip(self._ranks, self._heartbeats, strict=True)
        ]
        stacks = self._stacks()
        idle = [only_waits(stack) for stack in stacks]
        places = range(len(self._ranks))
        first = min(places, key=lambda place: (idle[place], -silences[place]))
        # On several hosts, all workers of this one may wait for another's.
        waits = self.job.part is not None and idle[first]
        for place, state in enumerate(states):
            message = f"no step for {self._limit:g} s (--hang-timeout){innermost(stacks[place])}"
            if not self._heartbeats[place].pid:
                message = "its process has not started"
            elif state is not None and state[0] in _STATES:
                message += f"; its process {_STATES[state[0]]}"
            is_secondary = place != first or waits
            found[place] = replace(
                found[place],
                message=message,
                traceback=stacks[place],
                is_secondary=is_secondary,
            )
            found[place].write(self._run_dir)
        return found[first]

    def _stacks(self) -> list[str]:
        """Where every thread of every worker is, by asking them; empty where one cannot answer."""
        files = [self.job.stacks_file(rank.local_rank) for rank in self._ranks]
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

    def _seen(self, rank: Rank, kind: str, message: str) -> Failure:
        failure = Failure.seen(kind, message, self.job, rank, self._heartbeats[rank.local_rank])
        failure.write(self._run_dir)
        return failure


_STATES = {
    "T": "was stopped by a signal (SIGSTOP)",
    "D": "waits for a device or a disk and cannot be interrupted",
}


def _state(pid: int) -> tuple[str, int] | None:
    """A process's state and, once it has ended, its wait status; None: it is gone. See proc(5)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0], int(fields[49])


def _has_ended(state: tuple[str, int] | None) -> bool:
    """Whether a process is gone, or only waits for its parent to ask how it ended."""
    return state is None or state[0] in "ZX"


def _last_words(status: int | None) -> tuple[str, str]:
    """What a wait status says of the end of a process that left no record."""
    if status is None:
        return "Exited", "its process is gone"
    if os.WIFSIGNALED(status):
        return "Killed", killed_by(os.WTERMSIG(status))
    code = os.waitstatus_to_exitcode(status)
    return "Exited", f"its process ended with code {code} and without an exception"


def killed_by(number: int) -> str:
    """A death by a signal in words."""
    hint = {
        signal.SIGKILL: ", possibly out of memory (`dmesg` would say)",
        signal.SIGBUS: ", possibly out of shared memory or disk",
    }.get(signal.Signals(number), "")
    return f"killed by {signal.Signals(number).name}{hint}"
