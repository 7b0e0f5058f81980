"""The hosts of a run, and the connection to each. Runs in the launching process.

OpenSSH's own client connects: what it verifies, and how it finds a host, is as the user knows it.
Everything that a host is told travels inside the connection, not in a command that others can see.
"""

import json
import os
import queue
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from mjfleet.config import LaunchConfig
from mjfleet.errors import UserError
from mjfleet.launch.host_environment import travelling
from mjfleet.launch.host_messages import LOST_SECONDS, HostChannel, Message
from mjfleet.worker.rank_environment import Rank

SLURM = "slurm"
END_SECONDS = 20.0
"""How long a deputy may take to end what it has started."""
OPTIONS = (
    "BatchMode=yes", "ConnectTimeout=10", "ClearAllForwardings=yes", "ControlMaster=no",
    "ForwardAgent=no", "ForwardX11=no", "RequestTTY=no",
)  # fmt: skip
"""ssh as the user has set it up, but without questions, and nothing besides the connection."""
LINES = 20
"""Lines that are kept of what a host says in plain text."""
NO_DIRECTORY = 97
"""The exit code of a host that lacks the working directory."""
_BOOT = (
    "import json, os, sys; told = json.loads(open(0, 'rb', 0, closefd=False).readline()); "
    "os.execve(sys.executable, "
    "[sys.executable, '-m', 'mjfleet.launch.host_agent'], os.environ | told)"
)
"""Becomes the deputy, with the environment that it is told first."""


def choose_hosts(config: LaunchConfig, environ: Mapping[str, str]) -> list[str]:
    """The names of the hosts of a run; none where that is this host alone.

    Raises:
        UserError: SLURM does not say, this host goes by two of the names, or something else has
            started workers already.
    """
    if Rank.from_environ(environ):
        if config.hosts:
            raise UserError(
                "--hosts starts workers, but something else has started these, such as torchrun."
            )
        return []
    names = config.hosts
    if names == [SLURM] or (not names and _is_wide_allocation(environ)):
        names = _slurm_hosts(environ)
    here = [name for name in names if is_here(name)]
    if len(here) > 1:
        addresses = ", ".join(f"{name} is {_resolve(name)}" for name in here)
        raise UserError(
            f"--hosts: {' and '.join(here)} are both this host, by what their names resolve to "
            f"here: {addresses}. Look at /etc/hosts, or name addresses."
        )
    if config.min_hosts is not None and config.min_hosts > max(1, len(names)):
        raise UserError(f"--min-hosts is {config.min_hosts}, but there are {len(names)} hosts.")
    return [] if names == here else list(names)


def _is_wide_allocation(environ: Mapping[str, str]) -> bool:
    """Whether this is the one process of a SLURM allocation with several nodes."""
    alone = environ.get("SLURM_STEP_NUM_TASKS", "1") == "1"
    return alone and int(environ.get("SLURM_JOB_NUM_NODES", "1")) > 1


def _slurm_hosts(environ: Mapping[str, str]) -> list[str]:
    nodes = environ.get("SLURM_JOB_NODELIST")
    if nodes is None:
        raise UserError("--hosts slurm: this is no SLURM allocation, which salloc or sbatch makes.")
    try:
        shown = subprocess.run(
            ["scontrol", "show", "hostnames", nodes], check=True, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise UserError(f"--hosts slurm: `scontrol show hostnames {nodes}`: {error}") from None
    return shown.stdout.split()


def is_here(name: str) -> bool:
    """Whether a name is this host's, which has an address that it resolves to."""
    address = _resolve(name)
    if address is None:
        return name == socket.gethostname()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe, suppress(OSError):
        probe.bind((address, 0))
        return True
    return False


def _resolve(name: str) -> str | None:
    try:
        return str(socket.getaddrinfo(name, None)[0][4][0])
    except OSError:
        return None


class HostConnection:
    """A host of the run, and the deputy on it."""

    def __init__(
        self, name: str, config: LaunchConfig, receive: Callable[[Message | None], object]
    ) -> None:
        """Start a deputy.

        Args:
            name: what the user calls the host.
            config: how ssh is to be called, and which variables go there.
            receive: called with each message from there, in a thread; in the end with None.
        """
        self.name = name
        self.is_here = is_here(name)
        self._said: deque[str] = deque(maxlen=LINES)
        enter = f"cd {shlex.quote(os.getcwd())} || exit {NO_DIRECTORY}; exec "
        command = ["sh", "-c", enter + shlex.join([sys.executable, "-c", _BOOT])]
        file = ["-F", config.ssh_config] if config.ssh_config else []
        self._call = shlex.join(["ssh", *file, name])
        if not self.is_here:
            # A host's own shell, whichever it is, starts that.
            options = [part for option in OPTIONS for part in ("-o", option)]
            command = ["ssh", *file, *options, "--", name, shlex.join(command)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # What a terminal sends is for the launcher alone.
        )
        assert self._process.stdin
        assert self._process.stdout
        told = {} if self.is_here else travelling(os.environ, config.env_var)
        self._listener = threading.Thread(target=self._listen, name="ssh", daemon=True)
        self._listener.start()
        self._channel = HostChannel(
            self._process.stdout.fileno(),
            os.dup(self._process.stdin.fileno()),
            receive,
            greeting=json.dumps(told),
        )
        self._process.stdin.close()
        self.send, self.send_file = self._channel.send, self._channel.send_file

    def __str__(self) -> str:
        return self.name

    def report(self) -> str:
        """Why nothing is to be heard from there any more, in words."""
        if self._channel.is_silent:
            return f"it was silent for {LOST_SECONDS:g} s: it is down, or the network is cut"
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
            self._listener.join(1.0)  # What it has said last may still be on its way.
        code, last = self._process.returncode, " ".join(list(self._said)[-3:])
        if code == 255 and not self.is_here:
            said = last.removeprefix("ssh: ") or "the connection has ended"
            return f"{said} (ssh; it has to work without a question: {self._call} true)"
        if code == NO_DIRECTORY:
            return f"it has no folder {os.getcwd()}, where you stand here"
        if code in (126, 127):
            return f"it has no {sys.executable}, which is Python here"
        return f"the deputy there has ended with code {code}: {last}"

    def leave(self) -> None:
        """Have the deputy end all that it has started."""
        self._channel.close(0.0)

    def end(self, deadline: float) -> None:
        """See that it has, or end the connection, without which it does."""
        patience = 0.0 if self._channel.is_silent else max(0.0, deadline - time.monotonic())
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _listen(self) -> None:
        """Keep what ssh or the deputy say in plain text."""
        assert self._process.stderr
        for line in self._process.stderr:
            if text := line.decode(errors="replace").strip():
                self._said.append(text)


class HostConnections:
    """All hosts of the run, the first one with rank 0. On leaving the block nothing is left there.

    Raises:
        UserError: ssh, or its configuration, is missing.
    """

    def __init__(self, names: Sequence[str], config: LaunchConfig) -> None:
        if config.ssh_config is not None and not os.path.isfile(config.ssh_config):
            raise UserError(f"--ssh-config {config.ssh_config}: there is no such file.")
        if shutil.which("ssh") is None:
            raise UserError("--hosts takes ssh, which is not installed here.")
        self._inbox: queue.SimpleQueue[tuple[int, Message | None]] = queue.SimpleQueue()
        self._started: list[HostConnection] = []
        try:
            for place, name in enumerate(names):
                post = HostConnection(
                    name, config, lambda message, place=place: self._put(place, message)
                )
                self._started.append(post)
        except BaseException:
            self.close()
            raise
        self._left_out: set[HostConnection] = set()
        self.meeting: tuple[str, int] = ("", 0)
        """Address and port of the first host where the workers of all meet, once that is known."""

    def __enter__(self) -> "HostConnections":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[HostConnection]:
        return (post for post in self._started if post not in self._left_out)

    def receive(self, seconds: float) -> tuple[HostConnection, Message | None] | None:
        """The next message, and whose; None instead of a message: there will be no more."""
        try:
            place, message = self._inbox.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None
        return self._started[place], message

    def leave_out(self, connections: Iterable[HostConnection]) -> None:
        """Go on without some hosts."""
        self._left_out.update(connections)

    def close(self) -> None:
        """End everything on all hosts, within END_SECONDS."""
        for post in self._started:
            post.leave()
        deadline = time.monotonic() + END_SECONDS
        for post in self._started:
            post.end(deadline)

    def _put(self, place: int, message: Message | None) -> None:
        self._inbox.put((place, message))
