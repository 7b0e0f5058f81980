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
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

import torch.distributed as dist
import torchrunx
import torchrunx.launcher
from torchrunx.utils.comm import LauncherAgentGroup
from torchrunx.utils.log_handling import get_handler_filter

from mjfleet.errors import UserError, WorkerError
from mjfleet.launch.logs import Relay, outputs
from mjfleet.launch.plan import LOCALHOST, LaunchPlan
from mjfleet.report.record import METRICS_FILE
from mjfleet.worker.job import Job, Outcome
from mjfleet.worker.spawned import run_spawned
from mjfleet.worker.stop import Stopped, StopRequest

LOOPBACK = "127.0.0.1"
GRACE_SECONDS = 5.0
"""How long the agent may take to end once torchrunx is done with it."""

T = TypeVar("T")


def run_fleet(plan: LaunchPlan, job: Job, stop: StopRequest) -> Outcome:
    """Run the job in all workers of the plan until they are done.

    Raises:
        UserError: a worker found a mistake of the user's.
        WorkerError: a worker failed.
        Stopped: a signal arrived before training had begun, or a second one.
    """
    log_files = [worker.log_file for worker in plan.workers]
    agent_log = log_files[0].with_name(f"{LOCALHOST}.log") if log_files[0] else None
    with (
        tempfile.TemporaryDirectory(prefix="mjfleet-") as scratch,
        Relay(log_files[0]) as relay,
        _agents() as agents,
        ThreadPoolExecutor(1) as pool,
    ):
        job = replace(job, outputs=outputs(relay, log_files), temporary=tempfile.gettempdir())
        launcher = torchrunx.Launcher(
            hostnames=[LOCALHOST],
            workers_per_host=len(plan.workers),
            backend=None,  # The workers make a process group of their own.
            extra_env_vars=_environment(plan.threads) | {"TMPDIR": scratch},
        ).set_logging_handlers(partial(_agent_handlers, agent_log))

        def pass_on() -> bool:
            if not Path(job.run_dir, METRICS_FILE).exists():
                return False
            agents.signal(signal.SIGINT)
            return True

        # In a thread: a signal would wait while the main thread is inside a collective.
        future = pool.submit(launcher.run, run_spawned, job)
        try:
            with stop.deferred(pass_on):
                return future.result().rank(0)
        except Stopped:
            agents.signal(signal.SIGKILL)
            raise
        except Exception as error:
            if stop.received is not None:
                raise Stopped(stop.received) from None
            raise _cause(Path(job.run_dir), error, agent_log) from None


def _environment(threads: int) -> dict[str, str]:
    """Variables that must be there before a worker imports anything."""
    pools = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return dict.fromkeys(pools, str(threads)) | {
        # Workers share the cores: their threads must not spin while they wait.
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        # Torch's agent would take SIGINT, which is how the workers are asked to stop.
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM",
    }


class _Agents:
    """The agent that torchrunx starts on this host, and its process group: all workers."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []

    def execute(self, command: str, hostname: str, **_: Any) -> tuple[str, str]:
        """What torchrunx calls to start the agent and, when all is done, to end it."""
        del hostname
        if command.startswith("kill "):  # It may have ended by itself.
            subprocess.run(command, shell=True, check=False, stderr=subprocess.DEVNULL)
        else:
            # The agent lives until its workers are done: only they take notice of SIGINT.
            command = f"trap '' INT; {command}"
            process = subprocess.Popen(command, shell=True, text=True, start_new_session=True)
            self._processes.append(process)
        return "", ""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the agent and all workers, whose group lasts until `end`."""
        for process in self._processes:
            os.killpg(process.pid, number)

    def end(self) -> None:
        """Give the agent a moment to end, then leave nothing of its group behind."""
        deadline = time.monotonic() + GRACE_SECONDS
        for process in self._processes:
            # Not to be reaped yet: that would let go of the group's number.
            look = os.WEXITED | os.WNOHANG | os.WNOWAIT
            while not os.waitid(os.P_PID, process.pid, look) and time.monotonic() < deadline:
                time.sleep(0.02)
        self.signal(signal.SIGKILL)
        for process in self._processes:
            process.wait()
        self._processes.clear()


class _LoopbackGroup(LauncherAgentGroup[T]):
    """torchrunx's group of launcher and agents, with a store that only this host can reach."""

    def __post_init__(self) -> None:
        listener = socket.create_server((LOOPBACK, self.launcher_port))
        store = dist.TCPStore(
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
def _agents() -> Iterator[_Agents]:
    """Keep torchrunx on this host for the length of the block; it has no settings for that."""
    agents = _Agents()
    module = torchrunx.launcher
    with (
        mock.patch.object(module, "socket", SimpleNamespace(getfqdn=lambda: LOOPBACK)),
        mock.patch.object(module, "LauncherAgentGroup", _LoopbackGroup),
        mock.patch.object(module, "execute_command", agents.execute),
        mock.patch.dict(os.environ, {"GLOO_SOCKET_IFNAME": "lo"}),
    ):
        try:
            yield agents
        finally:
            agents.end()


def _agent_handlers(path: Path | None) -> list[logging.Handler]:
    """The agent's log file. Called in torchrunx's log server, a fork of this process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # It ends when the launcher ends it.
    if path is None:
        return []
    handler = logging.FileHandler(path)
    handler.addFilter(get_handler_filter(LOCALHOST, None))
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    return [handler]


def _cause(run_dir: Path, error: Exception, agent_log: Path | None) -> Exception:
    """What to raise: the first failure that the workers wrote down and that is no echo."""
    records = [json.loads(path.read_text()) for path in run_dir.glob("failures/rank*.json")]
    if not records:
        more = f" What torchrunx's agent saw is in {agent_log}." if agent_log else ""
        return WorkerError(f"a worker ended without a word: {error or repr(error)}.{more}")
    first = min(records, key=lambda record: (record["echo"], record["time"]))
    if first["mistake"]:
        return UserError(first["message"])
    path = run_dir / "failures" / f"rank{first['rank']}.json"
    return WorkerError(
        f"rank {first['rank']} on {first['host']} ({first['device']}) failed:\n"
        f"{first['traceback']}Recorded in {path}"
    )
