"""The host agent: the process on each host of a run that starts its workers and reports on them.

The launcher is at the other end of its standard input and output. When the launcher is gone, the
host agent ends, with all that it has started. It obeys nothing else; that of the first host opens
the port where the workers of all hosts meet.
"""

import os
import queue
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from mjfleet.launch.host_facts import host_facts
from mjfleet.launch.host_messages import LOST_SECONDS, PIECE, HostChannel, Message
from mjfleet.launch.host_names import temporary_name
from mjfleet.launch.worker_watchdog import WorkerStatus
from mjfleet.utils.atomic_write import append
from mjfleet.utils.parent_death import PARENT_VARIABLE
from mjfleet.worker.failure_record import Failure
from mjfleet.worker.thread_limits import prepare, thread_variables
from mjfleet.worker.worker_args import LOOPBACK_ALONE, HostArgs, WorkerArgs

if TYPE_CHECKING:
    from mjfleet.launch.worker_processes import WorkerProcesses

CONNECT_SECONDS = 5.0  # How long the first host may take to answer another one.
END_SECONDS = 30.0  # How long it may take to end; workers are killed at once.
STATUS_SECONDS = 1.0  # How often the status of the workers is sent at least.


class HostAgent:
    """Does what the launcher says, one thing after another; what cannot wait, at once.

    The folder is for files of this run: heartbeats, and what is sent to the launcher. For the rest
    see `HostChannel`.
    """

    def __init__(self, reader: int, writer: int, folder: Path, patience: float | None) -> None:
        # Libraries leave files where they are imported.
        self._temporary, tempfile.tempdir = tempfile.gettempdir(), str(folder)
        self._folder = folder
        self._address = ""
        self._listener: socket.socket | None = None
        self._has_begun = False
        self._workers: WorkerProcesses | None = None
        self._told: tuple[WorkerStatus | None, float] = (None, 0.0)
        self._inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._channel = HostChannel(reader, writer, self._receive, patience)

    def serve(self) -> None:
        """Serve until the launcher disconnects."""
        while (message := self._inbox.get()) is not None:
            match message:
                case {"facts": question}:
                    self._channel.send({"facts": asdict(host_facts(**question))})
                case {"listen": address}:
                    self._reply(self._listen, address)
                case {"connect": [address, port]}:
                    self._reply(self._connect, address, port)
                case {"unwritten": error}:
                    raise error
                case {"prepare": [engine, threads]}:
                    _import_for_workers(engine, threads)
                case {"run": args, "agent_log": agent_log, "sends_files": sends_files}:
                    part = args["part"] and HostArgs(**args["part"])
                    self._run(WorkerArgs(**args | {"part": part}), agent_log, sends_files)
        self._channel.close(END_SECONDS)

    def _receive(self, message: Message | None) -> None:
        """Take a message, in the channel's thread."""
        match message:
            case {"has_begun": _}:
                workers = self._workers
                self._channel.send({"has_begun": bool(workers and workers.watchdog.has_begun)})
            case {"stop": _}:
                self._signal(signal.SIGINT)
            case {"all_hang": all_hang}:
                if self._workers:
                    self._workers.watchdog.all_hang = all_hang
            case {"kill": _}:
                self._signal(signal.SIGKILL)
            case {"file": name, "data": data}:
                # Not in the inbox: all of a checkpoint would wait there while torch is imported.
                try:
                    append(self._folder / Path(name).name, data)
                except OSError as error:
                    self._inbox.put({"unwritten": error})
            case None if not self._has_begun:
                shutil.rmtree(self._folder, ignore_errors=True)
                os._exit(0)  # The main thread may be importing torch.
            case None:
                end = threading.Timer(END_SECONDS, os._exit, (1,))
                end.daemon = True
                end.start()
                self._signal(signal.SIGKILL)
                self._inbox.put(None)
            case _:
                self._inbox.put(message)

    def _signal(self, number: signal.Signals) -> None:
        if self._workers:
            self._workers.send_signal(number)

    def _reply(self, answer: Callable[..., Message], *arguments: object) -> None:
        try:
            self._channel.send(answer(*arguments))
        except OSError as error:
            self._channel.send({"error": os.strerror(error.errno) if error.errno else str(error)})

    def _listen(self, address: str) -> Message:
        """Listen where the workers of all hosts will meet; returns the port.

        The other hosts try at once whether they can reach it, and rank 0 takes it over.
        """
        self._address = address
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        backlog = socket.SOMAXCONN  # Ranks of other hosts may all connect before rank 0 serves.
        self._listener = socket.create_server((address, 0), family=family, backlog=backlog)
        return {"port": self._listener.getsockname()[1]}

    def _connect(self, address: str, port: int) -> Message:
        """Try to reach the first host."""
        with socket.create_connection((address, port), timeout=CONNECT_SECONDS) as connection:
            self._address = connection.getsockname()[0]
        return {"connected": self._address}

    def _run(self, args: WorkerArgs, agent_log: str, sends_files: bool) -> None:
        """Run this host's workers to their end, and say how they have ended.

        With `sends_files`, relative paths are those of files that only the launcher's host keeps:
        they are made in the folder, and sent. `agent_log` is the log of torchrunx's agent.
        """
        self._has_begun = True
        from mjfleet.launch.worker_processes import WorkerProcesses

        part = args.part and replace(args.part, network=_network(self._address))
        if part and self._listener:  # Rank 0, a fork of this process, has the same descriptor.
            part = replace(part, listener=self._listener.fileno())
        folder = self._folder if sends_files else Path()
        args = replace(
            args,
            part=part,
            run_dir=str(folder / args.run_dir),
            log_files=tuple(str(folder / name) for name in args.log_files),
            checkpoint=args.checkpoint and str(folder / args.checkpoint),
            temporary=self._temporary,
            scratch=str(self._folder),
        )
        logs = [Path(name) for name in (*args.log_files, folder / agent_log)]
        files = GrowingFiles(self._channel, self._folder, logs)
        Path(args.run_dir).mkdir(exist_ok=True)
        with WorkerProcesses(args, logs[-1]) as workers:
            self._workers = workers

            def report() -> None:
                if self._channel.is_disconnected:
                    workers.send_signal(signal.SIGKILL)  # Also if they have only just started.
                files.send_new()
                status, now = workers.watchdog.status, time.monotonic()
                if status != self._told[0] or now - self._told[1] > STATUS_SECONDS:
                    self._told = status, now
                    self._channel.send({"status": asdict(status)})

            end = workers.follow(report)
        self._workers = None
        files.send_rest(self._folder.glob("*/failures/*"))
        self._channel.send({"failure" if isinstance(end, Failure) else "outcome": asdict(end)})


class GrowingFiles:
    """Sends what is appended to files to the launcher; those outside of a folder stay here.

    Their names in the folder are sent, too. Some may not exist yet.
    """

    def __init__(self, channel: HostChannel, folder: Path, paths: Iterable[Path]) -> None:
        self._channel, self._folder = channel, folder
        self._sent = dict.fromkeys((path for path in paths if folder in path.parents), 0)

    def send_new(self) -> bool:
        """Send what is new in each file, a piece at most; return whether there was anything."""
        found = False
        for path, sent in self._sent.items():
            if path.exists() and not self._channel.is_full:
                with path.open("rb") as file:
                    file.seek(sent)
                    data = file.read(PIECE)
                if data:
                    self._sent[path] += len(data)
                    self._channel.send_piece(str(path.relative_to(self._folder)), data)
                    found = True
        return found

    def send_rest(self, others: Iterable[Path]) -> None:
        """Send all that is left of these files, and all of some others."""
        self._sent |= dict.fromkeys(others, 0)
        while self.send_new() or self._channel.is_full:
            time.sleep(0.01)


def _network(address: str) -> dict[str, str]:
    """Return the variables by which gloo and NCCL use the interface of an address.

    What the user has set wins.
    """
    found = [
        interface
        for interface, known in psutil.net_if_addrs().items()
        if address in [one.address for one in known]
    ]
    chosen = {name: os.environ.get(name, *found[:1]) for name in LOOPBACK_ALONE}
    return {name: value for name, value in chosen.items() if value}


def _import_for_workers(engine: str, threads: int) -> None:
    """Import what workers, forks of this process, need; the settings count while that happens."""
    os.environ |= thread_variables(threads)
    # Without this, torch warns of each address that has no name.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    prepare()
    for module in ("launch.worker_processes", "worker.training", f"sim.{engine}_engine"):
        import_module(f"mjfleet.{module}")


def main(is_over_ssh: bool = False) -> None:
    """Serve the launcher, which is at the other end of standard input and output.

    Over ssh a launcher that is silent for LOST_SECONDS counts as gone; on this host it may be
    suspended for as long as the user likes.
    """
    os.environ[PARENT_VARIABLE] = str(os.getpid())  # For processes that this one starts.
    # Only the launcher decides when the run ends. Workers inherit what is ignored, and handle
    # SIGINT themselves: in this process a handler does nothing.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    # Nothing else may read or write the channel.
    reader, writer = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    patience = LOST_SECONDS if is_over_ssh else None
    folder = Path(tempfile.mkdtemp(prefix=temporary_name(os.getpid())))
    try:
        HostAgent(reader, writer, folder, patience).serve()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.stderr.flush()
    os._exit(0)  # Threads of torchrunx may still wait.
