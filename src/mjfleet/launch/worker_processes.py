"""This host's workers, started through torchrunx's agent. Runs in the host agent; imports torch."""

import os
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

import torchrunx

from mjfleet.launch.host_names import LOCALHOST
from mjfleet.launch.torchrunx_compat import AGENT_TIMEOUT_SECONDS, ForkedAgent
from mjfleet.launch.worker_watchdog import WorkerWatchdog, killed_by
from mjfleet.utils.wait_until import wait_until
from mjfleet.worker.failure_record import Failure
from mjfleet.worker.heartbeat import Heartbeat
from mjfleet.worker.torchrunx_entrypoint import train_as_torchrunx_worker
from mjfleet.worker.worker_args import Outcome, WorkerArgs

AGENT_GONE_SECONDS = 5.0  # How long workers may still be seen to end once the agent has.
GRACE_SECONDS = 3.0  # For the other workers to end by themselves once one has failed.
LOOK_SECONDS = 0.1


class WorkerProcesses:
    """torchrunx's agent and the workers of this host; none of them is left after the block."""

    def __init__(self, args: WorkerArgs) -> None:
        self._args = args
        self.watchdog = WorkerWatchdog(args)
        self._agent = ForkedAgent(Path(args.agent_log))
        self.send_signal, self.close = self._agent.send_signal, self._agent.close
        self._launcher = torchrunx.Launcher(
            hostnames=[LOCALHOST],
            workers_per_host=len(args.devices),
            backend=None,  # The workers make a process group of their own.
            agent_timeout=AGENT_TIMEOUT_SECONDS,
        ).set_logging_handlers(None)
        self._ended: Future[Any] = Future()

    def __enter__(self) -> Self:
        # Nobody waits for this thread: without an agent, torchrunx would stay in it for minutes.
        threading.Thread(target=self._launch, name="torchrunx", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def end(self) -> Outcome | Failure | None:
        """Wait a moment; return how training has ended, once all are done or one has failed."""
        time.sleep(LOOK_SECONDS)
        if outcome := self.watchdog.outcome:
            return outcome
        failure = self.watchdog.failure()
        if (end := self._agent.end()) and end.si_code != os.CLD_EXITED:
            return self._agent_failed(f"was {killed_by(end.si_status)}")
        if failure:
            # Let the others write what they have: they notice that one is missing.
            if failure.kind != "Hang" and not failure.mistake:
                wait_until(self.watchdog.is_gone, GRACE_SECONDS)
            return failure
        if (self._ended.done() or end) and not wait_until(
            lambda: self.watchdog.outcome or self.watchdog.failure(), AGENT_GONE_SECONDS
        ):
            error = self._ended.exception() if self._ended.done() else None
            why = f" ({error!r})" if error else ""
            return self._agent_failed(f"has ended{why}; its log is {self._args.agent_log}")
        return None

    def _launch(self) -> None:
        try:
            self._ended.set_result(self._launcher.run(train_as_torchrunx_worker, self._args))
        except BaseException as error:
            self._ended.set_exception(error)
        # Linux ends the agent with the thread that has forked it; the workers may not be done.
        threading.Event().wait()

    def _agent_failed(self, what: str) -> Failure:
        message, rank = f"torchrunx's agent {what}", self._args.rank_of(0)
        failure = Failure.seen("Agent", message, self._args, rank, Heartbeat())
        failure.write(Path(self._args.run_dir))
        return failure
