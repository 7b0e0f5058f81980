"""The launcher's deputy on a host of several: says what the host has, then runs its workers.

There is one on each host of a run, at the other end of a `Link`. What the launcher does with the
workers of one host alone, the deputy does with its own: torchrunx and its agent, pulses, records of
failures. When the launcher or the link is gone, it ends, and all that it has started.
"""

import fcntl
import math
import os
import platform
import queue
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mjfleet.launch.agent import PREFIX, Agent
from mjfleet.launch.devices import VISIBLE
from mjfleet.launch.host_messages import PIECE, HostChannel, Message, append
from mjfleet.launch.worker_watchdog import WorkerWatchdog
from mjfleet.utils.atomic_write import digests
from mjfleet.utils.hardware_names import count_gpus
from mjfleet.utils.packages import stack_versions
from mjfleet.worker.failure_record import FailedError
from mjfleet.worker.stop_signals import StopRequest
from mjfleet.worker.worker_args import LOOPBACK_ALONE, HostArgs, WorkerArgs

CONNECT_SECONDS = 5.0
"""How long the first host may take to answer another one."""
END_SECONDS = 30.0
"""How long the end may take before it is forced. The workers are killed at once."""
STATUS_SECONDS = 1.0
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Made anew whenever a machine starts: see random(4)."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is to be known of a host before workers are started on it."""

    versions: Mapping[str, str]
    code: Mapping[str, str]
    """Digests of mjfleet's own files."""
    task: Mapping[str, str]
    """Digests of the task's files; empty where there is no such folder."""
    gpus: int
    """GPUs that it has; 0 where that does not matter."""
    visible: str | None
    """CUDA_VISIBLE_DEVICES there."""
    cores: int
    """CPU cores that a process may use."""
    identity: str
    """What tells it from any other host."""
    has_token: bool
    """Whether there is a file that the launcher has made just now."""
    launcher_address: str
    """Where the launcher is, seen from there; empty on the launcher's own host."""
    address: str
    """Where the launcher has reached it; empty on the launcher's own host."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """What workers of a host are at."""

    has_begun: bool
    """Whether training has begun."""
    hangs: bool
    """Whether none of them has moved for the hang time-out."""


def see(task_folder: str, token: str, counts_gpus: bool, packages: Sequence[str]) -> Facts:
    """What this host has, packages besides the usual ones included."""
    launcher_address, _, address, _ = os.environ.get("SSH_CONNECTION", "   ").split(" ")
    return Facts(
        versions={"Python": platform.python_version()}
        | stack_versions()
        | {name: _version(name) for name in packages},
        code=digests(Path(__file__).parents[1]),
        task=digests(Path(task_folder)),
        gpus=count_gpus() if counts_gpus else 0,
        visible=os.environ.get(VISIBLE),
        cores=len(os.sched_getaffinity(0)),
        identity=f"{os.uname().nodename} {BOOT_ID.read_text().strip()}",
        has_token=Path(token).exists(),
        launcher_address=launcher_address,
        address=address,
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not at all"


class HostAgent:
    """Does what the launcher says, one thing after another."""

    def __init__(self, reader: int, writer: int, folder: Path) -> None:
        """Listen to the launcher; keep files that are not for this host alone in a folder."""
        self._folder = folder
        self._address = ""
        self._listener: socket.socket | None = None
        self._agent: Agent | None = None
        self._watchdog: _Crew | None = None
        self._inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._channel = HostChannel(reader, writer, self._receive)

    def serve(self) -> None:
        """Serve until the launcher has nothing more to say, or is gone."""
        while (message := self._inbox.get()) is not None:
            match message:
                case {"see": question}:
                    self._channel.send({"facts": asdict(see(**question))})
                case {"listen": address}:
                    self._reply(lambda address=address: self._listen(address))
                case {"connect": [address, port]}:
                    self._reply(lambda address=address, port=port: self._connect(address, port))
                case {"file": name, "data": data}:
                    append(self._folder / Path(name).name, data)
                case {"run": job, "agent_log": agent_log}:
                    self._run(WorkerArgs(**job | {"part": HostArgs(**job["part"])}), agent_log)
        self._channel.close(END_SECONDS)

    def _receive(self, message: Message | None) -> None:
        """In the link's thread: do at once what must not wait for the end of a run."""
        match message:
            case {"stop": _}:
                self._signal(signal.SIGINT)
            case {"hang": all_hang} if self._watchdog:
                self._watchdog.all_hang = all_hang
            case {"kill": _}:
                self._signal(signal.SIGKILL)
            case None:
                end = threading.Timer(END_SECONDS, os._exit, (1,))
                end.daemon = True
                end.start()
                self._signal(signal.SIGKILL)
                self._inbox.put(None)
            case _:
                self._inbox.put(message)

    def _signal(self, number: signal.Signals) -> None:
        if self._agent:
            with suppress(ProcessLookupError):
                self._agent.signal(number)

    def _reply(self, answer: Callable[[], Message]) -> None:
        try:
            self._channel.send(answer())
        except OSError as error:
            self._channel.send({"error": os.strerror(error.errno) if error.errno else str(error)})

    def _listen(self, address: str) -> Message:
        """Let others try whether they can reach this host; returns the port."""
        self._address = address
        self._listener = socket.create_server((address, 0), family=_family(address))
        return {"port": self._listener.getsockname()[1]}

    def _connect(self, address: str, port: int) -> Message:
        """Try to reach the first host."""
        with socket.create_connection((address, port), timeout=CONNECT_SECONDS) as connection:
            self._address = connection.getsockname()[0]
        return {"connected": self._address}

    def _run(self, job: WorkerArgs, agent_log: str | None) -> None:
        """Run this host's workers; what they leave in files of this host is sent."""
        if self._listener:
            self._listener.close()  # The port is rank 0's now.
        assert job.part
        # An absolute path stays what it is: that of a file for which there is no other place.
        job = replace(
            job,
            part=replace(job.part, network=_network(self._address)),
            run_dir=str(self._folder / job.run_dir),
            log_files=tuple(str(self._folder / name) for name in job.log_files),
            checkpoint=job.checkpoint and str(self._folder / job.checkpoint),
            temporary=tempfile.gettempdir(),
        )
        # Else torch warns of each address that has no name.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        own_log = self._folder / agent_log if agent_log else None
        Path(job.run_dir).mkdir(exist_ok=True)
        logs = map(Path, (*job.log_files, own_log or os.devnull))
        tails = Tails(self._channel, self._folder, [p for p in logs if self._folder in p.parents])
        with Agent(job.threads) as self._agent:
            from mjfleet.launch.worker_processes import run_fleet

            job = replace(job, scratch=self._agent.scratch)
            with _Crew(job, self._channel, tails) as watchdog:
                self._watchdog = watchdog
                try:
                    outcome = run_fleet(watchdog, self._agent, StopRequest(), own_log)
                    end = {"outcome": asdict(outcome)}
                except FailedError as failed:
                    end = {"failure": asdict(failed.failure)}
        self._agent = None
        tails.send_rest(self._folder.glob("*/failures/*"))
        self._channel.send(end)


class _Crew(WorkerWatchdog):
    """The workers of one host, of whom the launcher is told: it alone sees those of all hosts."""

    def __init__(self, job: WorkerArgs, channel: HostChannel, tails: "Tails") -> None:
        super().__init__(job)
        self.all_hang = False
        """Whether on no host a worker has moved for the hang time-out, as the launcher says."""
        self._channel = channel
        self._tails = tails
        self._hang_here = False
        self._status: Status | None = None
        self._told = -math.inf

    def wait(self, seconds: float) -> None:
        """Wait, and tell the launcher what there is to be told."""
        self._tails.send_new()
        status = Status(has_begun=self.has_begun, hangs=self._hang_here)
        if status != self._status or time.monotonic() - self._told > STATUS_SECONDS:
            self._status, self._told = status, time.monotonic()
            self._channel.send({"status": asdict(status)})
        super().wait(seconds)

    def _hangs(self) -> bool:
        self._hang_here = super()._hangs()
        return self._hang_here and self.all_hang


class Tails:
    """Sends what is appended to files.

    Args:
        link: where to.
        folder: that of all files, without which their names are sent.
        paths: files that grow, of which some may not be there yet.
    """

    def __init__(self, channel: HostChannel, folder: Path, paths: Iterable[Path]) -> None:
        self._channel = channel
        self._folder = folder
        self._sent = dict.fromkeys(paths, 0)

    def send_new(self) -> bool:
        """Send what is new in each file, a piece at most; whether there was anything."""
        found = False
        for path, sent in self._sent.items():
            if path.exists() and not self._channel.is_full:
                with path.open("rb") as file:
                    file.seek(sent)
                    data = file.read(PIECE)
                if data:
                    self._sent[path] += len(data)
                    self._channel.send_file(str(path.relative_to(self._folder)), data)
                    found = True
        return found

    def send_rest(self, others: Iterable[Path]) -> None:
        """Send all that is left, and all of other files."""
        self._sent |= dict.fromkeys(others, 0)
        while self.send_new() or self._channel.is_full:
            time.sleep(0.01)


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _network(address: str) -> dict[str, str]:
    """The variables by which gloo and NCCL take the interface of an address; the user's win."""
    interface = _interface(address)
    chosen = {name: os.environ.get(name, interface) for name in LOOPBACK_ALONE}
    return {name: value for name, value in chosen.items() if value}


def _interface(address: str) -> str | None:
    """The network interface that has an IPv4 address; see netdevice(7)."""
    ask_address = 0x8915
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # It has none.
                request = struct.pack("256s", name.encode())
                answer = fcntl.ioctl(any_socket, ask_address, request)
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


def main() -> None:
    """Serve the launcher, which is at the other end of standard input and output."""
    writer = os.dup(sys.stdout.fileno())
    # Nothing else may write where the launcher reads.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    prefix = f"{PREFIX}{os.getpid()}-{os.uname().nodename}-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        HostAgent(sys.stdin.fileno(), writer, Path(folder)).serve()


if __name__ == "__main__":
    main()
