"""All that is changed in torchrunx, for which it has no settings. Imported by the host agent alone.

Read in torchrunx 0.4.0. Each change could go if upstream offered what is named here:

- Its launcher, log server and process group listen on all interfaces, under the name that
  `socket.getfqdn` finds: an argument of `Launcher` for the address to bind.
- It starts its agent by a shell command, in which Python imports torch anew: an argument of
  `Launcher` for the function that starts and ends an agent.
- Workers send what they print through a log server that drops bytes that are no UTF-8. They undo
  that themselves (worker/torchrunx_entrypoint.py): an argument of `Launcher` to leave output alone.
"""

import logging
import multiprocessing
import os
import runpy
import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from multiprocessing import resource_tracker
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import psutil
import torch.distributed as dist
import torchrunx.agent
import torchrunx.launcher
from torchrunx.utils.comm import LauncherAgentGroup
from torchrunx.utils.log_handling import get_handler_filter

from mjfleet.launch.host_names import LOCALHOST
from mjfleet.utils.parent_death import PARENT_VARIABLE, die_with_parent
from mjfleet.worker.torch_process_group import LOOPBACK, listening_store

T = TypeVar("T")


class ForkedAgent:
    """torchrunx's agent, forked from this process, and its workers: a process group of their own.

    A fork has torch imported already. In this process, CUDA is not initialised, and torch has no
    threads. `environ` is added to the environment variables of the agent and the workers.

    From now on torchrunx starts this agent, and keeps to the loopback interface, in this process.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._pid: int | None = None
        self._lock = threading.Lock()
        self._is_closed = False
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        # Removes the semaphores of processes that are killed; its own group never is.
        resource_tracker.ensure_running()
        loopback = SimpleNamespace(getfqdn=lambda: LOOPBACK)
        for module, name, ours in (
            (torchrunx.launcher, "socket", loopback),
            (torchrunx.agent, "socket", loopback),
            (torchrunx.launcher, "LauncherAgentGroup", _LoopbackGroup),
            (torchrunx.launcher, "execute_command", self.execute),
        ):
            setattr(module, name, ours)

    def execute(self, command: str, **_: Any) -> tuple[str, str]:
        """Take the place of torchrunx's `execute_command`, which starts an agent and ends it."""
        arguments = shlex.split(command.partition("-m torchrunx ")[2])
        with self._lock:
            # Other commands are to end the agent, which this process does itself.
            if arguments and not self._is_closed:
                fork = multiprocessing.get_context("fork")
                process = fork.Process(target=_run_agent, args=(arguments, self._environ))
                process.start()
                assert process.pid
                with suppress(OSError):  # The agent does so as well: one of both is first.
                    os.setpgid(process.pid, process.pid)
                self._pid = process.pid
        return "", ""

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the agent and all workers, if they have been started."""
        if self._pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._pid, number)

    def close(self) -> None:
        """Kill the agent and all workers; none is started afterwards."""
        with self._lock:
            self._is_closed = True
            self.send_signal(signal.SIGKILL)

    def end(self) -> os.waitid_result | None:
        """Return how the agent has ended, if it has, unreaped: its group keeps its number."""
        if self._pid is None:
            return None
        return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)


def _run_agent(arguments: list[str], environ: Mapping[str, str]) -> None:
    """Run torchrunx's agent in a forked process."""
    with suppress(OSError):
        os.setpgid(0, 0)
    die_with_parent()
    os.environ |= {**environ, PARENT_VARIABLE: str(os.getpid())}
    tempfile.tempdir = None
    sys.argv[1:] = arguments
    runpy.run_module("torchrunx", run_name="__main__")


class _LoopbackGroup(LauncherAgentGroup[T]):
    """torchrunx's group of launcher and agent, with a store that only this host can reach."""

    def __post_init__(self) -> None:
        timeout = timedelta(seconds=self.agent_timeout)
        store = listening_store(LOOPBACK, self.launcher_port, self.world_size, timeout)
        self.group = dist.init_process_group(
            "gloo", store=store, rank=self.rank, world_size=self.world_size, timeout=timeout
        )


def end_helpers() -> None:
    """End torchrunx's log server, and have the resource tracker remove what was left."""
    if (tracker := resource_tracker.getfd()) is not None:
        os.close(tracker)
    helpers = psutil.Process().children()
    for helper in helpers:
        with suppress(psutil.NoSuchProcess):
            if "resource_tracker" not in " ".join(helper.cmdline()):
                helper.kill()
    psutil.wait_procs(helpers)


def agent_handlers(path: Path) -> list[logging.Handler]:
    """Make the agent's log file, in torchrunx's log server, which is a fork of this process."""
    die_with_parent()
    handler = logging.FileHandler(path)
    handler.addFilter(get_handler_filter(LOCALHOST, None))
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    return [handler]
