"""This host's workers: started through torchrunx's agent, and watched. Runs in the host agent.

They are watched by their records of failures, their processes and their heartbeats.
"""

import os
import signal
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torchrunx

from mjfleet.launch.host_names import LOCALHOST
from mjfleet.launch.torchrunx_compat import ForkedAgent
from mjfleet.rl.worker_phases import Phase
from mjfleet.utils.wait_until import wait_until
from mjfleet.worker.failure_record import (
    ALONE_SECONDS,
    Failure,
    hang_message,
    only_waits,
    read_failures,
)
from mjfleet.worker.heartbeat import HangDetector, Heartbeat
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.torchrunx_entrypoint import train_as_torchrunx_worker
from mjfleet.worker.worker_args import Outcome, WorkerArgs

AGENT_GONE_SECONDS = 5.0  # How long workers may still be seen to end once the agent has.
OTHER_WORKERS_GRACE_SECONDS = 3.0  # For the other workers to end by themselves once one has failed.
WORKER_POLL_SECONDS = 0.1
STACKS_SECONDS = 3.0  # How long workers may take to write their stacks.


class WorkerProcesses:
    """This host's workers and torchrunx's agent, which run during the block; none outlives it."""

    def __init__(self, args: WorkerArgs) -> None:
        self._args = args
        self._folders = Path(args.run_dir), Path(args.scratch)  # Where failures are recorded.
        self._limit: float = args.config["hang_timeout"]
        self._ranks = [args.rank_of(local_rank) for local_rank in range(len(args.devices))]
        self._hearts = [Heartbeat.in_file(args.heartbeat_file(r.local_rank)) for r in self._ranks]
        self._detector = HangDetector(self._hearts, self._limit)
        self._ended: Future[Any] = Future()

    def __enter__(self) -> Self:
        self._agent = ForkedAgent(Path(self._args.agent_log))
        self.send_signal, self.close = self._agent.send_signal, self._agent.close
        # Nobody waits for this thread: without an agent, torchrunx would stay in it for minutes.
        threading.Thread(target=self._launch, name="torchrunx", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _launch(self) -> None:
        launcher = torchrunx.Launcher(
            hostnames=[LOCALHOST],
            workers_per_host=len(self._ranks),
            backend=None,  # The workers make a process group of their own.
        ).set_logging_handlers(None)
        try:
            self._ended.set_result(launcher.run(train_as_torchrunx_worker, self._args))
        except BaseException as error:
            self._ended.set_exception(error)
        # Linux ends the agent with the thread that has forked it; the workers may not be done.
        threading.Event().wait()

    def end(self) -> Outcome | Failure | None:
        """Wait a moment; return how training has ended, once all are done or one has failed."""
        time.sleep(WORKER_POLL_SECONDS)
        if outcome := self.outcome:
            return outcome
        failure = self.failure()
        # Linux kills the workers of an agent that ends: so look at it after them.
        if (end := self._agent.end()) and end.si_status:
            return self._agent_failed(end)
        if failure:
            # Let the others write what they have: they notice that one is missing.
            if failure.kind != "Hang" and not failure.mistake:
                wait_until(self._is_gone, OTHER_WORKERS_GRACE_SECONDS)
            return failure
        if (self._ended.done() or end) and not wait_until(
            lambda: self.outcome or self.failure(), AGENT_GONE_SECONDS
        ):
            return self._agent_failed(end)
        return None

    def _agent_failed(self, end: os.waitid_result | None) -> Failure:
        what = "has ended"
        if end and end.si_code != os.CLD_EXITED:
            what = f"was {killed_by(end.si_status)}"
        elif self._ended.done() and (error := self._ended.exception()):
            what += f" ({error!r})"
        message = f"torchrunx's agent {what}; its log is {self._args.agent_log}"
        return self._failure("Agent", message, self._ranks[0], Heartbeat())

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
        """Return why a worker of this host has failed, if one has.

        A secondary failure waits for its cause.
        """
        # A worker is done, or writes its record, before it ends: so look at that after this.
        states = [_state(heart.pid) if heart.pid else ("R", 0) for heart in self._hearts]
        recorded = read_failures(*self._folders)
        cause = recorded[0] if recorded else None
        if cause and not (cause.is_secondary and abs(time.time() - cause.time) < ALONE_SECONDS):
            return cause
        known = {found.rank for found in recorded}
        for rank, heart, (state, status) in zip(self._ranks, self._hearts, states, strict=True):
            if state not in "ZX" or heart.phase == Phase.DONE or rank.rank in known:
                continue
            kind, message, is_aborted = "Exited", "its process is gone", False
            if os.WIFSIGNALED(status):
                kind, message = "Killed", killed_by(os.WTERMSIG(status))
                is_aborted = os.WTERMSIG(status) == signal.SIGABRT and self._args.backend == "nccl"
                if is_aborted:  # NCCL's watchdog does so, and another rank may be the cause.
                    message += ", as NCCL does once a rank waits --collective-timeout for others"
            elif state == "Z":
                code = os.waitstatus_to_exitcode(status)
                message = f"its process ended with code {code} and left no record of an exception"
            failure = self._failure(kind, message, rank, heart, is_secondary=is_aborted)
            if not is_aborted:
                return failure
        return self._hang() if self._detector.hangs() else None

    def _is_gone(self) -> bool:
        return all(_state(heart.pid)[0] in "ZX" for heart in self._hearts if heart.pid)

    def _failure(
        self, kind: str, message: str, rank: Rank, heart: Heartbeat, **more: Any
    ) -> Failure:
        """Record and return what is seen of a worker; `more` are other fields."""
        failure = replace(Failure.seen(kind, message, self._args, rank, heart), **more)
        failure.write(*self._folders)
        return failure

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
            more = {"traceback": stack, "is_secondary": rank != first}
            found[rank] = self._failure("Hang", message, rank, heart, **more)
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
