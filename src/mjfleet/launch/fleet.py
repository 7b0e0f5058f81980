"""Several workers on this host, through torchrunx. Runs in the launching process.

torchrunx starts an agent, which starts the workers and watches them. What it lacks for a run on
one host is added here: everything listens on the loopback interface only and needs no host name;
the agent and the workers are a process group of their own, so that signals reach this process
alone, which passes them on in its own time.
"""

import json
import logging
import os
import signal
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import torch.distributed as dist
import torchrunx
import torchrunx.launcher
from torchrunx.utils.comm import LauncherAgentGroup
from torchrunx.utils.log_handling import get_handler_filter

from mjfleet.errors import UserError, WorkerError
from mjfleet.launch.agent import Agent
from mjfleet.launch.logs import Relay
from mjfleet.launch.plan import LOCALHOST, LaunchPlan
from mjfleet.report.record import METRICS_FILE
from mjfleet.worker.group import LOOPBACK, loopback_store
from mjfleet.worker.job import Job, Outcome
from mjfleet.worker.spawned import run_spawned
from mjfleet.worker.stop import Stopped, StopRequest, die_with_parent

AGENT_TIMEOUT_SECONDS = 600
"""How long launcher and agent wait for each other: an agent is silent while its workers exit."""
AGENT_GONE_SECONDS = 5.0
"""How long torchrunx may take to notice that its agent has ended."""

T = TypeVar("T")


def run_fleet(plan: LaunchPlan, job: Job, stop: StopRequest, agent: Agent) -> Outcome:
    """Run the job in all workers of the plan until they are done.

    Raises:
        UserError: a worker found a mistake of the user's.
        WorkerError: a worker failed.
        Stopped: a signal arrived before training had begun, or a second one.
    """
    log_files = [worker.log_file for worker in plan.workers]
    agent_log = log_files[0].with_name(f"{LOCALHOST}.log") if log_files[0] else None
    with Relay(log_files[0]) as relay:
        job = replace(
            job,
            terminal=relay.paths,
            log_files=tuple(str(path.resolve()) if path else os.devnull for path in log_files),
            temporary=tempfile.gettempdir(),
        )
        _keep_on_loopback(agent)
        launcher = torchrunx.Launcher(
            hostnames=[LOCALHOST],
            workers_per_host=len(plan.workers),
            backend=None,  # The workers make a process group of their own.
            agent_timeout=AGENT_TIMEOUT_SECONDS,
        ).set_logging_handlers(partial(_agent_handlers, agent_log))

        def pass_on() -> bool:
            if not Path(job.run_dir, METRICS_FILE).exists():
                return False
            agent.signal(signal.SIGINT)
            return True

        future = _in_thread(lambda: launcher.run(run_spawned, job).rank(0))
        try:
            with stop.deferred(pass_on):
                return _wait(future, agent)
        except Stopped:
            agent.signal(signal.SIGKILL)
            raise
        except Exception as error:
            cause = _cause(Path(job.run_dir), error, agent_log)
            if cause.found or stop.received is None:
                raise cause.error from None
            raise Stopped(stop.received) from None


def _wait(future: "Future[T]", agent: Agent) -> T:
    """The result of torchrunx, which would not notice an agent that never got in touch."""
    while not wait([future], timeout=1.0).done:
        if agent.has_ended() and not wait([future], timeout=AGENT_GONE_SECONDS).done:
            raise RuntimeError("torchrunx's agent ended before it was connected")
    return future.result()


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
        store = loopback_store(self.launcher_port, self.world_size, timeout)
        self.group = dist.init_process_group(
            "gloo", store=store, rank=self.rank, world_size=self.world_size, timeout=timeout
        )


def _keep_on_loopback(agent: Agent) -> None:
    """Keep torchrunx on this host, where it has no settings for that: for good, in this process."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
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
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if path is None:
        return []
    handler = logging.FileHandler(path)
    handler.addFilter(get_handler_filter(LOCALHOST, None))
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    return [handler]


@dataclass(frozen=True)
class _Cause:
    """Why a fleet ended early, and whether a worker has said so."""

    error: Exception
    found: bool


def _cause(run_dir: Path, error: Exception, agent_log: Path | None) -> _Cause:
    """The first failure that the workers wrote down and that is no echo; else what is known."""
    records = [json.loads(path.read_text()) for path in run_dir.glob("failures/rank*.json")]
    first = min(records, key=lambda record: (record["echo"], record["time"]), default=None)
    if first is None or first["echo"]:
        text = f"a worker ended without a word: {str(error) or repr(error)}"
        if first is not None:
            text += f"\nWhat rank {first['rank']} saw of it: {first['message']}"
        if agent_log is not None:
            text += f"\nWhat torchrunx's agent saw: {agent_log}"
        return _Cause(WorkerError(text), found=False)
    if first["mistake"] and not (run_dir / METRICS_FILE).exists():
        return _Cause(UserError(first["message"]), found=True)
    path = run_dir / "failures" / f"rank{first['rank']}.json"
    text = (
        f"rank {first['rank']} on {first['host']} ({first['device']}) failed:\n"
        f"{first['traceback']}Recorded in {path}"
    )
    return _Cause(WorkerError(text), found=True)
