"""The process in which torchrunx's agent runs on this host. Imports nothing heavy.

Both the launcher and the agent take seconds to import torch. The agent's process therefore starts
first and imports while we do; torchrunx's command line then reaches it through its standard input.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from types import TracebackType
from typing import Any

GRACE_SECONDS = 5.0
"""How long the agent may take to end once torchrunx is done with it."""

_CODE = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)  # It lives until its workers are done.
from mjfleet.worker.stop import die_with_parent
die_with_parent()
import runpy, shlex, sys
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
        # What torch's elastic agent leaves behind there is removed with it.
        self._scratch = tempfile.TemporaryDirectory(prefix="mjfleet-")
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", _CODE],
            stdin=subprocess.PIPE,
            start_new_session=True,
            text=True,
            env=os.environ | _environment(threads) | {"TMPDIR": self._scratch.name},
        )

    def __enter__(self) -> "Agent":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            # After an error it has nothing left to do.
            deadline = time.monotonic() + (0.0 if kind else GRACE_SECONDS)
            while not self.has_ended() and time.monotonic() < deadline:
                time.sleep(0.02)
        finally:
            self.signal(signal.SIGKILL)
            self._process.wait()
            self._scratch.cleanup()

    def execute(self, command: str, hostname: str, **_: Any) -> tuple[str, str]:
        """What torchrunx calls to start the agent by a shell command, and later to end it."""
        del hostname
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

    def has_ended(self) -> bool:
        """Whether the agent has ended; it is not reaped, which would free its group's number."""
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, look) is not None


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
