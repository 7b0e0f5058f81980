"""Starts a host agent on each host of a run and holds the channel to it. Runs in the launcher.

Environment variables travel inside the connection: others could read a command line.
"""

import json
import os
import queue
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from mjfleet.config import LaunchConfig
from mjfleet.errors import UserError
from mjfleet.launch.host_names import is_here, temporary_name
from mjfleet.launch.hosts.host_channel import LOST_SECONDS, Answer, HostChannel, Message
from mjfleet.launch.hosts.host_environment import travelling
from mjfleet.utils.child_process import ChildProcess

HOST_AGENT_END_SECONDS = 20.0  # How long host agents may take to end what they have started.
OPTIONS = (
    "BatchMode=yes", "ConnectTimeout=10", "ClearAllForwardings=yes", "ControlMaster=no",
    "ForwardAgent=no", "ForwardX11=no", "RequestTTY=no",
)  # fmt: skip
"""ssh as the user has set it up, but without questions, and with nothing besides the connection."""
NO_DIRECTORY = 97  # The exit code of a host that lacks the working directory.
HOST_AGENT = "from mjfleet.launch.hosts.host_agent import main; main()"
"""Python code, because `-m` would have each worker import that module again as `__mp_main__`."""
OVER_SSH = "from mjfleet.launch.hosts.host_agent import main; main(is_over_ssh=True)"
_BOOT = (
    "import json, os, sys; sent = json.loads(open(0, 'rb', 0, closefd=False).readline()); "
    f"os.execve(sys.executable, [sys.executable, '-P', '-c', {OVER_SSH!r}], os.environ | sent)"
)
"""Reads the environment variables that travel, then becomes the host agent."""


class HostConnection(HostChannel):
    """A host of the run, and the channel to its host agent; `inbox` gets messages, then None."""

    def __init__(self, name: str, config: LaunchConfig, inbox: "Inbox") -> None:
        self.name = name
        self.is_here = is_here(name)
        command, greeting = [sys.executable, "-P", "-c", HOST_AGENT], b""
        if not self.is_here:
            file = ["-F", config.ssh_config] if config.ssh_config else []
            self._call = shlex.join(["ssh", *file, name])
            options = [part for option in OPTIONS for part in ("-o", option)]
            enter = f"cd {shlex.quote(os.getcwd())} || exit {NO_DIRECTORY}; exec "
            # The user's login shell there, whichever it is, starts sh.
            boot = ["sh", "-c", enter + shlex.join([sys.executable, "-P", "-c", _BOOT])]
            command = ["ssh", *file, *options, "--", name, shlex.join(boot)]
            greeting = json.dumps(travelling(os.environ, config.env_var)).encode() + b"\n"
        # In a session of its own: a terminal's signals reach the launcher alone.
        self._process = ChildProcess(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin
        assert self._process.stdout
        super().__init__(
            os.dup(self._process.stdout.fileno()),
            os.dup(self._process.stdin.fileno()),
            lambda message: inbox.put((self, message)),
            patience=None if self.is_here else LOST_SECONDS,
        )
        self._queue.put([greeting])  # Before all messages.
        self._process.stdin.close()

    def __str__(self) -> str:
        return self.name

    def why_lost(self) -> str:
        """Return why the host agent has disconnected."""
        if self.error:
            return f"its messages cannot be read ({self.error!r})"
        if self.is_silent:
            return f"it was silent for {LOST_SECONDS:g} s: it is down, or the network is cut"
        code = self._process.wait(1.0)
        last = " ".join(self._process.errors().split("\n")[-4:]).strip()
        if code == 255 and not self.is_here:
            why = last.removeprefix("ssh: ") or "the connection has ended"
            return f"{why} (ssh; it has to work without a question: {self._call} true)"
        if code == NO_DIRECTORY:
            return f"it has no folder {os.getcwd()}, where you stand here"
        return f"its host agent has ended ({self._process.how_it_ended()}): {last}".rstrip(": ")

    def end(self, deadline: float) -> None:
        """Wait until it has ended; at the deadline, of the monotonic clock, kill what is here."""
        if not self.is_silent:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        self._process.end()
        if self.is_here:  # A host agent that was killed has left its folder.
            for folder in Path(tempfile.gettempdir()).glob(f"{temporary_name(self._process.pid)}*"):
                shutil.rmtree(folder, ignore_errors=True)


Inbox = queue.SimpleQueue[tuple[HostConnection, Message | None]]


class HostConnections:
    """All hosts of the run, the first one with rank 0. On leaving the block nothing is left there.

    `meeting` is the address and port where the workers of several hosts meet, once it is known.
    """

    def __init__(self, names: Sequence[str], config: LaunchConfig) -> None:
        self._inbox: Inbox = queue.SimpleQueue()
        self._started = [HostConnection(name, config, self._inbox) for name in names]
        self.meeting: tuple[str, int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End everything on all hosts, within HOST_AGENT_END_SECONDS."""
        for host in self._started:
            host.close()
        deadline = time.monotonic() + HOST_AGENT_END_SECONDS
        for host in self._started:
            host.end(deadline)

    def __iter__(self) -> Iterator[HostConnection]:
        return iter(self._started)

    def send(self, message: Message) -> None:
        for host in self:
            host.send(message)

    def receive(self, seconds: float) -> tuple[HostConnection, Message | None] | None:
        """Return the next message with its sender; None if none comes in so many seconds.

        None instead of a message is a sender's last.
        """
        try:
            return self._inbox.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None

    def ask(
        self, requests: Mapping[HostConnection, Message], seconds: float
    ) -> dict[HostConnection, Message]:
        """Ask several hosts at the same time; return what each one answers, or its error."""
        for host, request in requests.items():
            host.send(request)
        deadline = time.monotonic() + seconds
        answers: dict[HostConnection, Message] = {}
        while requests.keys() - answers.keys():
            if (received := self.receive(deadline - time.monotonic())) is None:
                break
            host, message = received
            answers[host] = Answer(error=host.why_lost()) if message is None else message
        missing = Answer(error=f"no answer within {seconds:g} s")
        return {host: answers.get(host, missing) for host in requests}

    def leave_out(self, hosts: Iterable[HostConnection]) -> None:
        """Disconnect from hosts that the run does without."""
        for host in hosts:
            host.end(deadline=0.0)
            self._started.remove(host)


def refuse_hosts(
    problems: Mapping[HostConnection, Sequence[str]], kind: type[UserError] = UserError
) -> None:
    """Raise an error that names all problems of all hosts, if there are any."""
    found = {host: whys for host, whys in problems.items() if whys}
    if found:
        lines = "".join(f"\n  {host}: {why}" for host, whys in found.items() for why in whys)
        raise kind(f"nothing was started, {len(found)} of the hosts cannot take part:{lines}")
