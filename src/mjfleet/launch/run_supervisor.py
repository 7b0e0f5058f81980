"""Follows a run on all its hosts: who is done, who failed, who is lost. Runs in the launcher.

The host agent on each host watches the workers there. What none of them can see is decided here:
which failure came first, whether the workers of all hosts hang, whether a host is lost.
"""

import logging
import os
import signal
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from pathlib import Path

from mjfleet.launch.host_messages import Message
from mjfleet.launch.host_starter import HostConnection, HostConnections
from mjfleet.launch.launch_plan import LaunchPlan
from mjfleet.launch.output_relay import OutputRelay
from mjfleet.launch.worker_watchdog import ALONE_SECONDS, WorkerStatus
from mjfleet.runs.checkpoint_archive import CHECKPOINT_BYTES
from mjfleet.utils.atomic_write import append
from mjfleet.utils.safe_read import open_regular
from mjfleet.worker.failure_record import FailedError, Failure
from mjfleet.worker.heartbeat import Heartbeat
from mjfleet.worker.stop_signals import StopRequest
from mjfleet.worker.worker_args import HostArgs, Outcome, WorkerArgs

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
ANSWER_SECONDS = 1.0  # For host agents to say whether training has begun, once a signal has come.
GRACE_SECONDS = 5.0  # For the workers of other hosts to end by themselves once one has failed.
END_SECONDS = 10.0  # For host agents to end their workers and to send what these have left.


def supervise(plan: LaunchPlan, connections: HostConnections, stop: StopRequest) -> Outcome:
    """Run all workers of all hosts until they are done. All host agents have ended afterwards.

    Raises:
        FailedError: a worker failed, hung or was killed, or a host was lost.
        Stopped: a signal arrived before training had begun, or a second one.
    """
    with ExitStack() as stack:
        relay = stack.enter_context(OutputRelay(plan.workers[0].log_file))
        stack.enter_context(connections)
        if not all(host.is_here for host in connections):
            # Other hosts would take a launcher that Ctrl-Z suspends for lost.
            before = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
            stack.callback(signal.signal, signal.SIGTSTP, before)
        supervisor = RunSupervisor(plan, connections, relay)
        supervisor.start()
        with stop.deferred(supervisor.stop, relay.say):
            return supervisor.follow(stop)


@dataclass
class _Host:
    """What is known of the workers of a host; times are those of the monotonic clock."""

    args: WorkerArgs
    status: WorkerStatus | None = None
    heard: float = 0.0  # When the status came.
    has_begun: bool | None = None  # Its answer when a signal came; None: there is none yet.
    failure: Failure | None = None
    failed: float = 0.0  # When the failure came.
    outcome: Outcome | None = None

    @property
    def has_ended(self) -> bool:
        return self.failure is not None or self.outcome is not None


class RunSupervisor:
    """What the host agents say of all workers, and what follows from it."""

    def __init__(self, plan: LaunchPlan, connections: HostConnections, relay: OutputRelay) -> None:
        self._plan, self._connections, self._relay = plan, connections, relay
        self._hosts: dict[HostConnection, _Host] = {}
        self._all_hang = False
        self._lost_files: set[str] = set()
        log_file = plan.workers[0].log_file
        self._logs = log_file.parent if log_file else None

    def start(self) -> None:
        """Have every host agent start its workers."""
        for node, host in enumerate(self._connections):
            self._start(node, host)

    def _start(self, node: int, host: HostConnection) -> None:
        """Tell a host agent all that it needs to run its workers.

        Rank 0's host shares the folder of the run. The files of other hosts' workers come to this
        host through the channel: their names are relative to a folder there.
        """
        sends_files = node > 0 or not host.is_here

        def log(file: str) -> str:
            if host.is_here:
                return str((self._logs / file).absolute()) if self._logs else os.devnull
            return file

        workers = self._plan.workers_of(host.name)
        args, checkpoint, part = self._plan.worker_args(host.name), self._plan.checkpoint, None
        if checkpoint and node > 0 and not host.is_here:
            host.send_file(checkpoint.name, open_regular(checkpoint, CHECKPOINT_BYTES))
            args = replace(args, checkpoint=checkpoint.name)
        if self._connections.meeting:
            address, port = self._connections.meeting
            part = HostArgs(
                node=node,
                first_rank=workers[0].rank,
                world_size=self._plan.world_size,
                address=address,
                port=port,
            )
        args = replace(
            args,
            part=part,
            run_dir="run" if node > 0 else args.run_dir,
            terminal=self._relay.paths if node == 0 and host.is_here else None,
            log_files=tuple(log(f"{host}[{i}].log") for i in range(len(workers))),
        )
        self._hosts[host] = _Host(args)
        agent_log = log(f"{host}.log")
        host.send({"run": asdict(args), "agent_log": agent_log, "sends_files": sends_files})

    def stop(self) -> bool:
        """Ask all workers to stop after this iteration; return whether all have begun training.

        Iterations that a terminal shows may be newer than the newest status: each host is asked.
        """
        hosts, deadline = self._hosts.values(), time.monotonic() + ANSWER_SECONDS
        for host in hosts:
            host.has_begun = None
        self._connections.send({"has_begun": True})
        while any(host.has_begun is None for host in hosts) and time.monotonic() < deadline:
            self._receive(LOOK_SECONDS)
        if not all(host.has_begun for host in hosts):
            return False
        self._connections.send({"stop": True})
        return True

    def follow(self, stop: StopRequest) -> Outcome:
        """Wait until all workers are done, or the first has failed."""
        while (failure := self._cause()) is None:
            self._relay.check()
            outcomes = [host.outcome for host in self._hosts.values()]
            if outcomes[0] and all(outcomes):
                return outcomes[0]
            stop.check()
            self._receive(LOOK_SECONDS)
        # Let the other hosts' workers write what they have before they are killed.
        patient = failure.kind not in ("Lost", "Hang") and not failure.is_users_mistake
        self._receive_until_ended(GRACE_SECONDS if patient else 0.0)
        self._connections.send({"kill": True})
        self._receive_until_ended(END_SECONDS)
        raise FailedError(failure, self._plan.run_dir)

    def _cause(self) -> Failure | None:
        """Return why the run has failed, if it has.

        A secondary failure counts only when every other host has ended, or has shown since then
        that it has not failed itself.
        """
        hosts = self._hosts.values()
        failed = [(h.failure.is_secondary, h.failed, h.failure) for h in hosts if h.failure]
        if not failed:
            return None
        is_secondary, when, failure = min(failed, key=itemgetter(0, 1))
        waits = any(not h.has_ended and h.heard < when + ALONE_SECONDS for h in hosts)
        return None if is_secondary and waits else failure

    def _receive_until_ended(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not all(h.has_ended for h in self._hosts.values()):
            self._receive(LOOK_SECONDS)

    def _receive(self, seconds: float) -> None:
        """Take one message, if one comes within so many seconds, and all that have come already."""
        while received := self._connections.receive(seconds):
            if received[0] in self._hosts:  # Not one that was left out.
                self._take(*received)
            seconds = 0.0

    def _take(self, connection: HostConnection, message: Message | None) -> None:
        host, now = self._hosts[connection], time.monotonic()
        match message:
            case {"status": status}:
                host.status, host.heard = WorkerStatus(**status), now
                self._look_for_hang()
            case {"has_begun": has_begun}:
                host.has_begun = has_begun
            case {"file": name, "data": data}:
                self._keep(connection, name, data)
            case {"failure": failure}:
                host.failure, host.failed = Failure(**failure), now
            case {"outcome": outcome}:
                host.outcome = Outcome(**outcome)
            case None if not host.has_ended:
                why = f"this host is lost: {connection.why_lost()}"
                lost = Failure.seen("Lost", why, host.args, host.args.rank_of(0), Heartbeat())
                if not connection.is_here:
                    lost = replace(lost, host=connection.name)
                lost.write(self._plan.run_dir)
                host.failure, host.failed = lost, now

    def _look_for_hang(self) -> None:
        """Tell all hosts when no worker of any moves: each then finds out why its own do not."""
        at_work = [host for host in self._hosts.values() if not host.has_ended]
        all_hang = all(host.status and host.status.hangs for host in at_work)
        if all_hang != self._all_hang:
            self._all_hang = all_hang
            self._connections.send({"all_hang": all_hang})

    def _keep(self, host: HostConnection, name: str, data: bytes) -> None:
        """Keep a piece of another host's file where it belongs; a failure to is one warning."""
        path = self._plan.run_dir / "failures" if Path(name).parent.name else self._logs
        if name == f"{self._plan.workers[0].host}[0].log":
            self._relay.pass_on(sys.stdout.fileno(), data)
        elif path and name not in self._lost_files:
            try:
                path.mkdir(exist_ok=True)
                append(path / Path(name).name, data)
            except OSError as error:
                logger.warning("%s of %s ends here: %s", name, host, error.strerror)
                self._lost_files.add(name)
