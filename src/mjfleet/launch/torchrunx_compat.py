"""All that is changed in torchrunx, for which it has no settings. Imported by the host agent alone.

Read in torchrunx 0.4.0. Each change could go if `torchrunx.Launcher` had an argument for it:

- how it talks to its agent: it unpickles what comes to a port of all interfaces; here, a pipe.
- how an agent and its workers start and end: each is a new Python that imports everything anew.
- that output is left alone: it goes through a log server, which unpickles what any user sends it.
"""

import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar

import torchrunx.agent
import torchrunx.launcher
import torchrunx.worker
from torchrunx.utils.comm import LauncherAgentGroup
from torchrunx.utils.errors import AgentFailedError

from mjfleet.launch.host_names import LOCALHOST
from mjfleet.utils.parent_death import PARENT_VARIABLE, die_with_parent
from mjfleet.utils.wait_until import wait_until

T = TypeVar("T")
FORK = multiprocessing.get_context("fork")
ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT  # Look, but do not reap.


class ForkedAgent:
    """torchrunx's agent, forked from this process, and its workers: a process group of their own.

    They share what this process has imported; it must not have initialised CUDA or torch's threads.
    The agent logs to the file `log`. From now on torchrunx starts this agent in this process.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: Any = None
        self._lock = threading.Lock()
        self._is_closed = False
        # The names of hosts are not needed, and finding them may take long.
        nameless = SimpleNamespace(getfqdn=lambda: "127.0.0.1")
        for module in (torchrunx.agent, torchrunx.launcher):
            _replace(module, socket=nameless, LauncherAgentGroup=PipeGroup)
        no_server = SimpleNamespace(start=lambda: None, kill=lambda: None)
        _replace(
            torchrunx.launcher,
            execute_command=self.execute,
            Event=threading.Event,
            get_context=lambda _: SimpleNamespace(Process=lambda **_: no_server),
        )

    def execute(self, command: str, **_: Any) -> tuple[str, str]:
        """Take the place of torchrunx's `execute_command`, which starts an agent and ends it."""
        with self._lock:
            # Other commands are to end the agent, which this process does itself.
            if "-m torchrunx" in command and not self._is_closed:
                PipeGroup.pipe, theirs = FORK.Pipe()
                process = FORK.Process(target=_run_agent, args=(theirs, self._log))
                process.start()
                theirs.close()
                assert process.pid
                with suppress(OSError):  # The agent does so as well: one of both is first.
                    os.setpgid(process.pid, process.pid)
                self._process = process
        return "", ""

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the agent and all workers, if they have been started."""
        if (process := self._process) is not None:  # Another thread may close it meanwhile.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def close(self) -> None:
        """Kill the agent and all workers; none is started afterwards. Any thread may call this."""
        with self._lock:
            self._is_closed = True
            self.send_signal(signal.SIGKILL)
            if self._process is not None:
                self._process.join()
                self._process = None  # Its number may become another process's.

    def end(self) -> os.waitid_result | None:
        """Return how the agent has ended, if it has, unreaped: its group keeps its number."""
        return None if self._process is None else os.waitid(os.P_PID, self._process.pid, ENDED)


class ForkedWorkers:
    """This host's workers, which torchrunx's agent forks, without threads, instead of spawning."""

    def __init__(
        self,
        *,
        entrypoint: Callable[..., object],
        args: Mapping[int, Sequence[object]],
        **_: object,
    ) -> None:
        self._processes = {
            local_rank: FORK.Process(target=entrypoint, args=arguments)
            for local_rank, arguments in args.items()
        }
        for process in self._processes.values():
            process.start()

    def wait(self, timeout: float) -> SimpleNamespace | None:
        """Return how the workers have ended, once all have; None after so many seconds.

        None of them is reaped: the watchdog looks at how they have ended.
        """
        workers = self._processes.items()
        if not wait_until(lambda: all(_exit_code(one) is not None for _, one in workers), timeout):
            return None
        codes = {rank: _exit_code(one) for rank, one in workers}
        failures = {r: SimpleNamespace(message=f"exit code {c}") for r, c in codes.items() if c}
        return SimpleNamespace(return_values=dict.fromkeys(codes), failures=failures)

    def close(self) -> None:
        """End the agent if it has failed; its workers end with it, see `die_with_parent`.

        They end after it, so that nobody takes one of them for the cause.
        """
        if sys.exc_info()[1]:
            logging.exception("the agent has failed")
            os._exit(1)


def _exit_code(process: Any) -> int | None:
    """Return the exit code of a worker, or minus the number of a signal; None while it runs."""
    try:
        end = os.waitid(os.P_PID, process.pid, ENDED)
    except ChildProcessError:  # It ended while another one was started, which has reaped it.
        return process.exitcode
    return end and (end.si_status if end.si_code == os.CLD_EXITED else -end.si_status)


class PipeGroup(LauncherAgentGroup[T]):
    """torchrunx's launcher, which is rank 0, and its agent, connected by a pipe."""

    pipe: ClassVar[Connection]  # This process's end.

    def __post_init__(self) -> None:
        """Take the place of torchrunx's process group."""

    def _all_gather(self, obj: Any) -> list[Any]:
        """Exchange an object with the other side; AgentFailedError if that has ended.

        It may be silent for any time, as in a job that a scheduler suspends.
        """
        try:
            self.pipe.send(obj)
            theirs = self.pipe.recv()
        except (OSError, EOFError) as error:
            raise AgentFailedError from error
        return [obj, theirs] if self.rank == 0 else [theirs, obj]

    def shutdown(self) -> None:
        self.pipe.close()


def _run_agent(pipe: Connection, log: Path) -> None:
    with suppress(OSError):
        os.setpgid(0, 0)
    die_with_parent()
    PipeGroup.pipe.close()
    PipeGroup.pipe = pipe
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    for module in (torchrunx.agent, torchrunx.worker):
        _replace(
            module,
            log_records_to_socket=lambda **_: None,
            redirect_stdio_to_logger=lambda logger: None,
        )
    _replace(
        torchrunx.agent,
        dist_mp=SimpleNamespace(
            start_processes=ForkedWorkers, DefaultLogsSpecs=lambda log_dir: None
        ),
    )
    file = log.open("a")
    for number in (1, 2):
        os.dup2(file.fileno(), number)
    form = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(stream=file, level=logging.INFO, format=form, force=True)
    torchrunx.agent.main(
        launcher_hostname="",
        launcher_port=0,
        world_size=2,  # With the launcher.
        rank=1,
        logger_hostname="",
        logger_port=0,
        hostname=LOCALHOST,
    )
    threading.Event().wait()  # With the workers, unreaped, until the host agent has looked at them.


def _replace(module: object, **names: object) -> None:
    for name, ours in names.items():
        setattr(module, name, ours)
