"""Follows a run on all its hosts: which failure came first, which host is lost, who is done."""

import logging
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

from mjfleet.errors import Stopped
from mjfleet.launch.hosts.host_channel import FilePiece, Message, SendSignal, WorkerStatus
from mjfleet.launch.hosts.host_starter import HostConnection, HostConnections
from mjfleet.launch.launch_plan import LaunchPlan, log_name
from mjfleet.launch.output_relay import OutputRelay
from mjfleet.runs.checkpoints import CHECKPOINT_BYTES, forget_rank_files, rank_files_in
from mjfleet.utils.input_files import FILE_BYTES, FOLDER
from mjfleet.utils.safe_read import open_regular
from mjfleet.worker.failure_record import ALONE_SECONDS, Failure
from mjfleet.worker.heartbeat import Heartbeat
from mjfleet.worker.stop_signals import StopRequest
from mjfleet.worker.worker_args import Outcome, WorkerArgs

logger = logging.getLogger(__name__)

SUPERVISOR_POLL_SECONDS = 0.1
ANSWER_SECONDS = 1.0
"""Once a signal has come, for host agents to report that training has begun, or for rank 0 to print
that it stops."""
OTHER_HOSTS_GRACE_SECONDS = 5.0  # For other hosts' workers to end once one has failed.
HOST_AGENTS_END_SECONDS = 10.0  # For host agents to end workers, and send what these have left.


def supervise(
    plan: LaunchPlan, connections: HostConnections, stop: StopRequest, lines: Sequence[str] = ()
) -> Outcome | Failure:
    """Run all workers of all hosts until they are done or one has failed; end the host agents.

    `lines` are printed before rank 0's output, and hold up nothing where nobody reads them.

    Raises:
        Stopped: a signal arrived before training had begun, or a second one.
    """
    with ExitStack() as stack:
        log_file = plan.logs and plan.logs / log_name(plan.hosts[0].host)
        relay = stack.enter_context(OutputRelay(log_file))
        for line in lines:
            relay.print_line(line)
        stack.enter_context(connections)
        if not all(host.is_here for host in connections):
            # Other hosts would take a launcher that Ctrl-Z suspends for lost.
            before = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
            stack.callback(signal.signal, signal.SIGTSTP, before)
        stack.enter_context(stop.deferred(is_announced=False))  # See `follow`.
        return RunSupervisor(plan, connections, relay).follow(stop)


@dataclass
class _Host:
    """What is known of the workers of a host; times are those of the monotonic clock."""

    args: WorkerArgs
    has_begun: bool = False
    heard: float = 0.0  # When it last reported that.
    failed: float = 0.0  # When the failure came.
    end: Outcome | Failure | None = None


class RunSupervisor:
    """Starts the workers of all hosts, and decides by the host agents' reports how a run ends."""

    def __init__(self, plan: LaunchPlan, connections: HostConnections, relay: OutputRelay) -> None:
        self._plan, self._connections, self._relay = plan, connections, relay
        self._hosts: dict[HostConnection, _Host] = {}
        self._lost_files, self._begun_files = set[str](), set[str]()
        for node, host in enumerate(connections):
            self._hosts[host] = _Host(self._args(node, host))
            host.send(self._hosts[host].args)

    def _args(self, node: int, host: HostConnection) -> WorkerArgs:
        """Return all that a host agent needs to run its workers; send it the checkpoint.

        The files of other hosts' workers come through the channel: their names are relative there.
        """
        args = self._plan.worker_args(node)
        checkpoint, logs = self._plan.checkpoint, self._plan.logs
        names = [log_name(host.name, i) for i in range(len(args.devices))] + [f"{host}.log"]
        if host.is_here:
            names = [str((logs / name).absolute()) if logs else os.devnull for name in names]
        elif node > 0:
            for path in sorted(self._plan.run_dir.joinpath(FOLDER).glob("*")):
                host.send_file(path.name, open_regular(path, FILE_BYTES))
        if checkpoint and node > 0 and not host.is_here:
            ranks = [args.rank_of(i).rank for i in range(len(args.devices))]
            beside = [path for rank in ranks for path in rank_files_in(checkpoint.parent, rank)]
            for path in (*beside, checkpoint):
                host.send_file(path.name, open_regular(path, CHECKPOINT_BYTES))
            args = replace(args, checkpoint=checkpoint.name)
        return replace(
            args,
            meeting=self._connections.meeting,
            run_dir="run" if node > 0 else args.run_dir,
            terminal=self._relay.paths if node == 0 and host.is_here else None,
            log_files=tuple(names[:-1]),
            agent_log=names[-1],
        )

    def follow(self, stop: StopRequest) -> Outcome | Failure:
        """Wait until all workers are done, or the first has failed.

        Rank 0 says that it stops, above what it draws on a terminal. While it waits for others it
        cannot, and this process says so.
        """
        deadline, passed, is_asked_to_stop = math.inf, 0, False
        while (failure := self._cause()) is None:
            ends = [host.end for host in self._hosts.values()]
            if all(ends) and isinstance(ends[0], Outcome):
                return ends[0]
            number, now = stop.check(), time.monotonic()
            if number and is_asked_to_stop and now > deadline:
                if self._relay.passed == passed:
                    stop.announce(number)
                deadline = math.inf
            elif number and not is_asked_to_stop:
                deadline = min(deadline, now + ANSWER_SECONDS)
                if all(host.has_begun for host in self._hosts.values()):
                    deadline, passed = now + ANSWER_SECONDS, self._relay.passed
                    self._connections.send(SendSignal(number))
                    is_asked_to_stop = True
                elif now > deadline:  # There is no iteration to finish.
                    stop.say(f"{signal.Signals(number).name}: stopping at once")
                    raise Stopped(number)
            self._receive(SUPERVISOR_POLL_SECONDS)
        # Let the other hosts' workers write what they have before they are killed.
        patient = failure.kind not in ("Lost", "Hang") and not failure.mistake
        self._receive_until_ended(OTHER_HOSTS_GRACE_SECONDS if patient else 0.0)
        self._connections.send(SendSignal(signal.SIGKILL))
        self._receive_until_ended(HOST_AGENTS_END_SECONDS)
        return failure

    def _cause(self) -> Failure | None:
        """Return why the run has failed, if it has.

        A secondary failure counts only when every other host has ended, or has shown since then
        that it has not failed itself.
        """
        hosts = self._hosts.values()
        failed = [
            (h.end.is_secondary, h.failed, h.end) for h in hosts if isinstance(h.end, Failure)
        ]
        if not failed:
            return None
        is_secondary, when, failure = min(failed, key=itemgetter(0, 1))
        waits = any(not h.end and h.heard < when + ALONE_SECONDS for h in hosts)
        return None if is_secondary and waits else failure

    def _receive_until_ended(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not all(h.end for h in self._hosts.values()):
            self._receive(SUPERVISOR_POLL_SECONDS)

    def _receive(self, seconds: float) -> None:
        while received := self._connections.receive(seconds):
            if received[0] in self._hosts:  # Not one that was left out.
                self._take(*received)
            seconds = 0.0

    def _take(self, connection: HostConnection, message: Message | None) -> None:
        host, now = self._hosts[connection], time.monotonic()
        match message:
            case WorkerStatus(has_begun):
                host.has_begun, host.heard = has_begun, now
            case FilePiece(name, data):
                self._keep(connection, name, data)
            case Failure() | Outcome():
                host.end, host.failed = message, now
            case None if not host.end:
                why = f"this host is lost: {connection.why_lost()}"
                lost = Failure.seen("Lost", why, host.args, host.args.rank_of(0), Heartbeat())
                if not connection.is_here:
                    lost = replace(lost, host=connection.name)
                lost.write(self._plan.run_dir)
                host.end, host.failed = lost, now

    def _keep(self, host: HostConnection, name: str, data: bytes) -> None:
        """Keep a piece of another host's file where it belongs; a failure to is one warning."""
        path, file = self._plan.logs, Path(name).name
        if (kind := Path(name).parent.name) in ("failures", "checkpoints"):
            path = self._plan.run_dir / kind
        is_new = kind == "checkpoints" and name not in self._begun_files
        if name == log_name(self._plan.hosts[0].host):
            self._relay.pass_on(sys.stdout.fileno(), data)
        elif path and name not in self._lost_files:
            try:
                path.mkdir(exist_ok=True)
                if is_new:
                    self._begun_files.add(name)
                    forget_rank_files(path, file)
                with (path / file).open("ab") as copy:
                    copy.write(data)
            except OSError as error:
                logger.warning("%s of %s ends here: %s", name, host, error.strerror)
                self._lost_files.add(name)
