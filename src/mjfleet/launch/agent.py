"""The process in which torchrunx's agent runs on this host. Imports nothing heavy.

Both the launcher and the agent take seconds to import torch. The agent's process therefore starts
first and imports while we do; torchrunx's command line then reaches it through its standard input.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from mjfleet.utils.parent_death import PARENT_VARIABLE
from mjfleet.worker.thread_limits import thread_variables
from mjfleet.worker.worker_args import LOOPBACK_ALONE

PREFIX = "mjfleet-"
"""Of folders for temporary files: the number and host of the process that made them follow."""
_HOST = os.uname().nodename

_CODE = """
import signal
# It lives until its workers are done. They inherit what is ignored, and not what is handled: to
# torch, SIGINT is the end of a worker that has lost its agent while it imports.
signal.signal(signal.SIGINT, lambda number, frame: None)
for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, signal.SIG_IGN)
from mjfleet.utils.parent_death import PARENT_VARIABLE, die_with_parent
die_with_parent()
import os, runpy, shlex, sys
os.environ[PARENT_VARIABLE] = str(os.getpid())
import torchrunx.agent
arguments = shlex.split(sys.stdin.readline())
if arguments:
    sys.argv[1:] = arguments
    runpy.run_module("torchrunx", run_name="__main__")
"""


class Agent:
    """The agent and the workers that it starts: a process group of their own.

    A terminal's signals do not reach it; this process decides what to pass on. On leaving the
    block, nothing of the group is left.
    """

    def __init__(self, threads: int) -> None:
        _remove_stale_folders()
        # What torch's elastic agent leaves behind there is removed with it.
        self._scratch = tempfile.TemporaryDirectory(
            prefix=f"{PREFIX}{os.getpid()}-{_HOST}-", ignore_cleanup_errors=True
        )
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", _CODE],
            stdin=subprocess.PIPE,
            start_new_session=True,
            text=True,
            env=os.environ
            | worker_environment(threads)
            | {"TMPDIR": self._scratch.name, PARENT_VARIABLE: str(os.getpid())},
        )

    def __enter__(self) -> "Agent":
        return self

    def __exit__(self, *_: object) -> None:
        self.signal(signal.SIGKILL)
        self._process.wait()
        self._scratch.cleanup()

    @property
    def scratch(self) -> str:
        """A folder for temporary files that lasts as long as the block."""
        return self._scratch.name

    def execute(self, command: str, hostname: str, **_: Any) -> tuple[str, str]:
        """What torchrunx calls to start the agent by a shell command, and later to end it."""
        del hostname
        if self._process.returncode is not None:
            return "", ""  # Its number may be another process's by now.
        arguments = command.partition("-m torchrunx ")[2]
        assert self._process.stdin is not None
        if arguments:
            self._process.stdin.write(arguments + "\n")
            self._process.stdin.close()
        else:
            os.kill(self._process.pid, signal.SIGTERM)
        return "", ""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the agent and all workers, whose group lasts as long as the block."""
        os.killpg(self._process.pid, number)

    def wait(self, seconds: float) -> None:
        """Wait until the agent has ended, or for so long."""
        deadline = time.monotonic() + seconds
        while not self.has_ended() and time.monotonic() < deadline:
            time.sleep(0.01)

    def has_ended(self) -> bool:
        """Whether the agent has ended; it is not reaped, which would free its group's number."""
        return self._end() is not None

    @property
    def killed_by(self) -> int | None:
        """The signal that ended it, if one did."""
        end = self._end()
        return end.si_status if end and end.si_code in (os.CLD_KILLED, os.CLD_DUMPED) else None

    def _end(self) -> os.waitid_result | None:
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, look)


def worker_environment(threads: int) -> dict[str, str]:
    """Variables that must be there before a worker imports anything."""
    return thread_variables(threads) | {
        **LOOPBACK_ALONE,
        # Torch's agent would take SIGINT, which is how the workers are asked to stop.
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM",
    }


def _remove_stale_folders() -> None:
    """Remove what runs left behind whose launcher was killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-{_HOST}-*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)
