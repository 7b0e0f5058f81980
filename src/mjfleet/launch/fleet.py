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
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar
from unittest import mock

import torch.distributed as dist
import torchrunx
import torchrunx.launcher
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torchrunx.utils.comm import LauncherAgentGroup
from torchrunx.utils.log_handling import get_handler_filter

from mjfleet.errors import UserError, WorkerError
from mjfleet.launch.agent import Agent
from mjfleet.launch.logs import Relay
from mjfleet.launch.plan import LOCALHOST, LaunchPlan
from mjfleet.report.record import METRICS_FILE
from mjfleet.worker.job import Job, Outcome
from mjfleet.worker.spawned import run_spawned
from mjfleet.worker.stop import Stopped, StopRequest

LOOPBACK = "127.0.0.1"

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
    with Relay(log_files[0]) as relay, _on_loopback(agent):
        job = replace(
            job,
            terminal=relay.paths,
            log_files=tuple(str(path.resolve()) if path else os.devnull for path in log_files),
            temporary=tempfile.gettempdir(),
        )
        launcher = torchrunx.Launcher(
            hostnames=[LOCALHOST],
            workers_per_host=len(plan.workers),
            backend=None,  # The workers make a process group of their own.
        ).set_logging_handlers(partial(_agent_handlers, agent_log))

        def pass_on() -> bool:
            if not Path(job.run_dir, METRICS_FILE).exists():
                return False
            agent.signal(signal.SIGINT)
            return True

        thread, future = _in_thread(lambda: launcher.run(run_spawned, job).rank(0))
        try:
            with stop.deferred(pass_on):
                return future.result()
        except Stopped:
            agent.signal(signal.SIGKILL)
            # Connected to its agent, torchrunx is done at once; not yet, it stays for a minute.
            thread.join(1.0)
            raise
        except Exception as error:
            if stop.received is not None:
                raise Stopped(stop.received) from None
            raise _cause(Path(job.run_dir), error, agent_log) from None


def _in_thread(call: Callable[[], T]) -> "tuple[threading.Thread, Future[T]]":
    """Call it in a thread: a signal would wait while the main thread is inside a collective."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=run, name="torchrunx", daemon=True)
    thread.start()
    return thread, future


class _LoopbackGroup(LauncherAgentGroup[T]):
    """torchrunx's group of launcher and agents, with a store that only this host can reach."""

    def __post_init__(self) -> None:
        listener = socket.create_server((LOOPBACK, self.launcher_port))
        store = TCPStore(
            LOOPBACK,
            self.launcher_port,
            self.world_size,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        timeout = timedelta(seconds=self.agent_timeout)
        self.group = dist.init_process_group(
            "gloo", store=store, rank=self.rank, world_size=self.world_size, timeout=timeout
        )


@contextmanager
def _on_loopback(agent: Agent) -> Iterator[None]:
    """Keep torchrunx on this host for the length of the block; it has no settings for that."""
    module = torchrunx.launcher
    with (
        mock.patch.object(module, "socket", SimpleNamespace(getfqdn=lambda: LOOPBACK)),
        mock.patch.object(module, "LauncherAgentGroup", _LoopbackGroup),
        mock.patch.object(module, "execute_command", agent.execute),
        mock.patch.dict(os.environ, {"GLOO_SOCKET_IFNAME": "lo"}),
    ):
        yield


def _agent_handlers(path: Path | None) -> list[logging.Handler]:
    """The agent's log file. Called in torchrunx's log server, a fork of this process."""
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


def _cause(run_dir: Path, error: Exception, agent_log: Path | None) -> Exception:
    """What to raise: the first failure that the workers wrote down and that is no echo."""
    records = [json.loads(path.read_text()) for path in run_dir.glob("failures/rank*.json")]
    causes = [record for record in records if not record["echo"]]
    if not causes:
        more = f"; torchrunx's agent wrote {agent_log}" if agent_log else ""
        return WorkerError(f"a worker ended without a word: {str(error) or repr(error)}{more}")
    first = min(causes, key=lambda record: record["time"])
    if first["mistake"]:
        return UserError(first["message"])
    path = run_dir / "failures" / f"rank{first['rank']}.json"
    return WorkerError(
        f"rank {first['rank']} on {first['host']} ({first['device']}) failed:\n"
        f"{first['traceback']}Recorded in {path}"
    )
