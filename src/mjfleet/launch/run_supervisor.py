"""A run on several hosts: who is done, who failed, who is lost. Runs in the launching process.

The deputy on each host watches the workers there. What none of them can see is decided here: which
failure came first, whether all workers of all hosts hang, whether a host is gone.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from pathlib import Path

from mjfleet.launch.host_agent import Status
from mjfleet.launch.host_messages import Message, append
from mjfleet.launch.host_starter import HostConnection, HostConnections
from mjfleet.launch.launch_plan import LaunchPlan
from mjfleet.launch.output_relay import Relay
from mjfleet.launch.worker_watchdog import ALONE_SECONDS
from mjfleet.worker.failure_record import FailedError, Failure
from mjfleet.worker.heartbeat import Heartbeat
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.stop_signals import StopRequest
from mjfleet.worker.worker_args import HostArgs, Outcome, WorkerArgs

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
GRACE_SECONDS = 5.0
"""How long the workers of other hosts may take to end by themselves once one has failed."""
END_SECONDS = 10.0
"""How long their deputies may take to end them and to send what they have left."""


def run_on_hosts(
    plan: LaunchPlan, job: WorkerArgs, connections: HostConnections, stop: StopRequest
) -> Outcome:
    """Run the job in all workers of all hosts until they are done.

    Args:
        plan: who runs where.
        job: what all hosts are told.
        posts: the hosts, which are left in the end.
        stop: asks the workers to stop.

    Raises:
        FailedError: a worker failed, hung or was killed, or a host was lost.
        Stopped: a signal arrived before training had begun, or a second one.
    """
    first, *_ = connections
    with ExitStack() as stack:
        relay = stack.enter_context(Relay(plan.workers[0].log_file))
        stack.enter_context(connections)
        stack.enter_context(_without_suspension())
        fleet = _Fleet(plan, job, connections, relay)
        fleet.start(relay.paths if first.is_here else None)
        with stop.deferred(fleet.stop, relay.say):
            return fleet.follow(stop)


@dataclass
class _Host:
    """What is known of the workers of a host."""

    first_rank: int
    status: Status | None = None
    heard: float = 0.0
    """When the status came, by the monotonic clock."""
    failure: Failure | None = None
    failed: float = 0.0
    """When that came."""
    outcome: Outcome | None = None

    @property
    def has_ended(self) -> bool:
        return self.failure is not None or self.outcome is not None


class _Fleet:
    """The workers of all hosts, by what the hosts tell of them."""

    def __init__(
        self, plan: LaunchPlan, job: WorkerArgs, connections: HostConnections, relay: Relay
    ) -> None:
        self._relay = relay
        self._lost_files: set[str] = set()
        self._plan = plan
        self._job = job
        self._connections = connections
        self._hosts: dict[HostConnection, _Host] = {}
        self._all_hang = False
        log_file = plan.workers[0].log_file
        self._logs = log_file.parent if log_file else None

    def start(self, terminal: tuple[str, str] | None) -> None:
        """Have every host start its workers; rank 0 writes to `terminal`, if that is here."""
        for node, post in enumerate(self._connections):
            workers = [worker for worker in self._plan.workers if worker.host == post.name]
            self._hosts[post] = _Host(first_rank=workers[0].rank)
            logs = [self._log(post, f"{post}[{i}].log") for i in range(len(workers))]
            checkpoint = self._plan.checkpoint
            if checkpoint and node and not post.is_here:
                post.send_file(checkpoint.name, checkpoint.read_bytes())
                checkpoint = Path(checkpoint.name)
            elif checkpoint:
                checkpoint = checkpoint.absolute()
            job = replace(
                self._job,
                devices=tuple(worker.device for worker in workers),
                threads=workers[0].threads,
                part=HostArgs(
                    node=node,
                    first_rank=workers[0].rank,
                    world_size=self._plan.world_size,
                    address=self._connections.meeting[0],
                    port=self._connections.meeting[1],
                ),
                # Only rank 0 writes the run; what goes wrong elsewhere is sent here.
                run_dir="run" if node else str(self._plan.run_dir.absolute()),
                terminal=None if node else terminal,
                log_files=tuple(log or os.devnull for log in logs),
                checkpoint=str(checkpoint) if checkpoint else None,
            )
            post.send({"run": asdict(job), "agent_log": self._log(post, f"{post}.log")})

    def _log(self, post: HostConnection, name: str) -> str | None:
        """A log on a host: where it belongs, or, on another host, its name."""
        if not post.is_here:
            return name
        return str((self._logs / name).absolute()) if self._logs else None

    def stop(self) -> bool:
        """Ask all workers to stop after this iteration; whether training has begun on all."""
        if not all(host.status and host.status.has_begun for host in self._hosts.values()):
            return False
        self._tell({"stop": True})
        return True

    def follow(self, stop: StopRequest) -> Outcome:
        """Wait until all workers are done, or the first has failed."""
        hosts = self._hosts.values()
        while True:
            outcomes = [host.outcome for host in hosts]
            if outcomes[0] and all(outcomes):
                return outcomes[0]
            stop.check()
            if failure := self._cause():
                break
            self._receive(LOOK_SECONDS)
        # Let the others write what they have; what is left of them then is ended.
        patient = failure.kind not in ("Lost", "Hang") and not failure.is_users_mistake
        self._receive_until_ended(GRACE_SECONDS if patient else 0.0)
        self._tell({"kill": True})
        self._receive_until_ended(END_SECONDS)
        record = self._plan.run_dir / "failures" / f"rank{failure.rank}.json"
        raise FailedError(failure, record if record.exists() else None)

    def _cause(self) -> Failure | None:
        """Why the run has failed, if it has.

        What looks like the echo of another failure is told only when every other host has ended,
        or has shown since then that it has not failed itself.
        """
        failed = [
            (h.failure.is_secondary, h.failed, h.failure) for h in self._hosts.values() if h.failure
        ]
        if not failed:
            return None
        is_secondary, when, failure = min(failed, key=itemgetter(0, 1))
        others = [host for host in self._hosts.values() if not host.has_ended]
        if is_secondary and any(host.heard < when + ALONE_SECONDS for host in others):
            return None
        return failure

    def _receive_until_ended(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not all(h.has_ended for h in self._hosts.values()):
            self._receive(LOOK_SECONDS)

    def _receive(self, seconds: float) -> None:
        """Take what hosts tell, for so long."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if (received := self._connections.receive(left)) is None:
                break
            post, message = received
            if post in self._hosts:  # Not one that was left out.
                self._take(post, message)

    def _take(self, post: HostConnection, message: Message | None) -> None:
        host, now = self._hosts[post], time.monotonic()
        match message:
            case {"status": status}:
                host.status, host.heard = Status(**status), now
                self._look_for_hang()
            case {"file": name, "data": data}:
                self._keep(post, name, data)
            case {"failure": failure}:
                host.failure, host.failed = Failure(**failure), now
            case {"outcome": outcome}:
                host.outcome = Outcome(**outcome)
            case None if not host.has_ended:
                host.failure, host.failed = self._lost(post, host), now

    def _look_for_hang(self) -> None:
        """Tell all hosts when no worker of any moves any more: then each asks its own why."""
        at_work = [host for host in self._hosts.values() if not host.has_ended]
        all_hang = all(host.status and host.status.hangs for host in at_work)
        if all_hang != self._all_hang:
            self._all_hang = all_hang
            self._tell({"hang": all_hang})

    def _keep(self, post: HostConnection, name: str, data: bytes) -> None:
        """Keep a piece of another host's file where it belongs; a failure to is one warning."""
        path = self._plan.run_dir / "failures" if Path(name).parent.name else self._logs
        if name == f"{self._plan.workers[0].host}[0].log":
            self._relay.pass_on(sys.stdout.fileno(), data)
        elif path and name not in self._lost_files:
            try:
                path.mkdir(exist_ok=True)
                append(path / Path(name).name, data)
            except OSError as error:
                logger.warning("%s of %s ends here: %s", name, post, error.strerror)
                self._lost_files.add(name)

    def _lost(self, post: HostConnection, host: _Host) -> Failure:
        rank = Rank(rank=host.first_rank)
        seen = Failure.seen(
            "Lost", f"this host is lost: {post.report()}", self._job, rank, Heartbeat()
        )
        failure = replace(seen, host=post.name)
        failure.write(self._plan.run_dir)
        return failure

    def _tell(self, message: Message) -> None:
        for post in self._hosts:
            post.send(message)


@contextmanager
def _without_suspension() -> Iterator[None]:
    """Ignore Ctrl-Z: other hosts would take a launcher that is suspended for lost."""
    before = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, before)
