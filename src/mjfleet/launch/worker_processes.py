"""Several workers on this host, through torchrunx. Runs in the launching process.

torchrunx starts an agent, which starts the workers and watches them. What it lacks for a run on
one host is added here: everything listens on the loopback interface only and needs no host name;
the agent and the workers are a process group of their own, so that signals reach this process
alone, which passes them on in its own time.
"""

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import torch.distributed as dist
import torchrunx
import torchrunx.launcher
from torchrunx.utils.comm import LauncherAgentGroup
from torchrunx.utils.log_handling import get_handler_filter

from mjfleet.launch.agent import Agent
from mjfleet.launch.launch_plan import LOCALHOST
from mjfleet.launch.worker_watchdog import WorkerWatchdog, killed_by
from mjfleet.utils.parent_death import PARENT_VARIABLE, die_with_parent
from mjfleet.worker.failure_record import FailedError, Failure
from mjfleet.worker.heartbeat import Heartbeat
from mjfleet.worker.stop_signals import CONTROLLED, StopRequest
from mjfleet.worker.torch_process_group import LOOPBACK, listening_store
from mjfleet.worker.torchrunx_entrypoint import train_as_torchrunx_worker
from mjfleet.worker.worker_args import Outcome, WorkerArgs

AGENT_TIMEOUT_SECONDS = 600
"""How long launcher and agent wait for each other: an agent is silent while its workers exit."""
DYING_SECONDS = 0.5
"""How long after its workers an agent that was killed may seem to live."""
AGENT_GONE_SECONDS = 5.0
"""How long workers may still be seen to end once torchrunx or its agent has."""
GRACE_SECONDS = 3.0
"""How long the others may take to end by themselves once one has failed."""
END_SECONDS = 5.0
LOOK_SECONDS = 0.1

T = TypeVar("T")


def run_fleet(
    watchdog: WorkerWatchdog,
    agent: Agent,
    stop: StopRequest,
    agent_log: Path | None,
    say: Callable[[str], object] | None = None,
) -> Outcome:
    """Run the job of a crew in all workers of this host until they are done.

    Args:
        crew: what is known of the workers.
        agent: the process in which torchrunx is to start them.
        stop: asks them to stop.
        agent_log: the agent's own log; None: none.
        say: prints lines about signals; None: what does so otherwise.

    Raises:
        FailedError: a worker failed, hung or was killed.
        Stopped: a signal arrived before training had begun, or a second one.
    """
    _keep_on_loopback(agent)
    launcher = torchrunx.Launcher(
        hostnames=[LOCALHOST],
        workers_per_host=len(watchdog.job.devices),
        backend=None,  # The workers make a process group of their own.
        agent_timeout=AGENT_TIMEOUT_SECONDS,
    ).set_logging_handlers(partial(_agent_handlers, agent_log))

    def pass_on() -> bool:
        if not watchdog.has_begun:
            return False
        agent.signal(signal.SIGINT)
        return True

    future = _in_thread(lambda: launcher.run(train_as_torchrunx_worker, watchdog.job))
    try:
        with stop.deferred(pass_on, say):
            return _follow(watchdog, agent, future, agent_log, stop)
    finally:
        agent.signal(signal.SIGKILL)
        # torchrunx notices that its agent is gone; one that was never there it awaits.
        wait([future], timeout=END_SECONDS)


def _follow(
    watchdog: WorkerWatchdog,
    agent: Agent,
    future: "Future[Any]",
    agent_log: Path | None,
    stop: StopRequest,
) -> Outcome:
    """Wait until all workers are done, or the first has failed."""
    gone_since = math.inf
    while True:
        if outcome := watchdog.outcome:
            return outcome
        stop.check()
        failure = watchdog.failure()
        if failure and failure.kind == "Killed":
            # By the system, or with the agent: that can be seen a moment later than its workers.
            agent.wait(DYING_SECONDS)
        if agent.killed_by is not None:
            raise _agent_failed(watchdog.job, f"torchrunx's agent was {killed_by(agent.killed_by)}")
        if failure:
            break
        if future.done() or agent.has_ended():
            now = time.monotonic()
            gone_since = min(gone_since, now)
            if now - gone_since > AGENT_GONE_SECONDS:
                error = future.exception() if future.done() else None
                what = f": {str(error) or repr(error)}" if error else ""
                seen = f"; its log is {agent_log}" if agent_log else ""
                raise _agent_failed(watchdog.job, f"torchrunx's agent has ended{what}{seen}")
        watchdog.wait(LOOK_SECONDS)
    if failure.kind == "Exited" and not failure.traceback:
        wait([future], timeout=GRACE_SECONDS)
        if future.done() and (error := future.exception()):
            failure = replace(failure, message=f"{failure.message}; torchrunx says: {error!r}")
    # Let the others write what they have: they notice that one is missing.
    patient = failure.kind != "Hang" and not failure.is_users_mistake
    deadline = time.monotonic() + (GRACE_SECONDS if patient else 0.0)
    while not watchdog.is_gone() and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    raise watchdog.ended(failure)


def _agent_failed(job: WorkerArgs, message: str) -> FailedError:
    failure = Failure.seen("Agent", message, job, job.rank_of(0), Heartbeat())
    return FailedError(failure, failure.write(Path(job.run_dir)))


def _in_thread(call: Callable[[], T]) -> "Future[T]":
    """Call it in a thread: a signal would wait while the main thread is inside a collective.

    Nobody waits for the thread: without an agent, torchrunx would stay in it for minutes.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="torchrunx", daemon=True).start()
    return future


class _LoopbackGroup(LauncherAgentGroup[T]):
    """torchrunx's group of launcher and agents, with a store that only this host can reach."""

    def __post_init__(self) -> None:
        timeout = timedelta(seconds=self.agent_timeout)
        store = listening_store(LOOPBACK, self.launcher_port, self.world_size, timeout)
        self.group = dist.init_process_group(
            "gloo", store=store, rank=self.rank, world_size=self.world_size, timeout=timeout
        )


def _keep_on_loopback(agent: Agent) -> None:
    """Keep torchrunx on this host, where it has no settings for that: for good, in this process."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ[PARENT_VARIABLE] = str(os.getpid())  # To its log server, a fork.
    for name, ours in (
        ("socket", SimpleNamespace(getfqdn=lambda: LOOPBACK)),
        ("LauncherAgentGroup", _LoopbackGroup),
        ("execute_command", agent.execute),
    ):
        setattr(torchrunx.launcher, name, ours)


def _agent_handlers(path: Path | None) -> list[logging.Handler]:
    """The agent's log file. Called in torchrunx's log server, a fork of this process."""
    die_with_parent()
    # It ends when the launcher ends it, not by what the launcher's terminal sends.
    signal.set_wakeup_fd(-1)
    for number in CONTROLLED:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if path is None:
        return []
    handler = logging.FileHandler(path)
    handler.addFilter(get_handler_filter(LOCALHOST, None))
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    return [handler]
