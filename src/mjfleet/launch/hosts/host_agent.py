"""The process on each host that starts its workers, and ends with them if the launcher is gone."""

import os
import queue
import shutil
import signal
import socket
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import psutil

from mjfleet.launch.host_names import temporary_name
from mjfleet.launch.hosts.host_channel import (
    FILE_PIECE_BYTES,
    LOST_SECONDS,
    Answer,
    FilePiece,
    HostChannel,
    Meet,
    Message,
    SendSignal,
    WorkerStatus,
)
from mjfleet.launch.hosts.host_inventory import AskInventory, host_inventory
from mjfleet.utils.child_process import wait_for_own_children
from mjfleet.utils.parent_death import PARENT_VARIABLE
from mjfleet.utils.wait_until import wait_until
from mjfleet.worker.thread_limits import import_for_training, thread_variables
from mjfleet.worker.worker_args import LOOPBACK_ALONE, WorkerArgs

if TYPE_CHECKING:
    from mjfleet.launch.worker_processes import WorkerProcesses

CONNECT_SECONDS = 5.0  # How long the first host may take to answer another one.
FOLDER_REMOVAL_SECONDS = 10.0  # How long removing the folder may take, while workers end.


class HostAgent:
    """Does what the launcher asks for, one thing after another; what cannot wait, at once.

    The folder is for files of this run: heartbeats, and what is sent to the launcher.
    """

    def __init__(self, reader: int, writer: int, folder: Path, patience: float | None) -> None:
        self._folder = folder
        tempfile.tempdir = str(folder)  # Libraries and torchrunx's agent leave files there.
        self._address = ""
        self._listener: socket.socket | None = None
        self._workers: WorkerProcesses | None = None
        self._sent: dict[Path, int] = {}  # Bytes of each file that the launcher has already.
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._channel = HostChannel(reader, writer, self._receive, patience)

    def serve(self) -> NoReturn:
        while True:
            match message := self._inbox.get():
                case AskInventory():
                    self._channel.send(host_inventory(message))
                case Meet(address, port):
                    self._channel.send(self._meet(address, port))
                case WorkerArgs():
                    self._run(message)

    def _receive(self, message: Message | None) -> None:
        """Take a message, in the channel's thread."""
        match message:
            case SendSignal(number):
                if self._workers:
                    self._workers.send_signal(signal.Signals(number))
            case FilePiece(name, data):
                # Not in the inbox: all of a checkpoint would wait there while torch is imported.
                with (self._folder / Path(name).name).open("ab") as file:
                    file.write(data)
            case None:  # The main thread may be inside a library.
                if self._workers:
                    self._workers.close()
                wait_until(self._remove_folder, FOLDER_REMOVAL_SECONDS)
                os._exit(0)
            case _:
                self._inbox.put(message)

    def _remove_folder(self) -> bool:
        """Return whether the folder is gone: a worker that ends, or an import, may still write."""
        shutil.rmtree(self._folder, ignore_errors=True)
        return not self._folder.exists()

    def _meet(self, address: str, port: int | None) -> Answer:
        """Listen where the workers of all hosts will meet, or try to reach the host that does."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        backlog = socket.SOMAXCONN  # Ranks of other hosts may all connect before rank 0 serves.
        try:
            if port is None:
                # Rank 0 takes it over.
                self._listener = socket.create_server((address, 0), family=family, backlog=backlog)
                self._address, port = self._listener.getsockname()[:2]
            else:
                with socket.create_connection((address, port), CONNECT_SECONDS) as connection:
                    self._address = connection.getsockname()[0]
        except OSError as error:
            return Answer(error=os.strerror(error.errno) if error.errno else str(error))
        return Answer(port)

    def _run(self, args: WorkerArgs) -> None:
        """Run this host's workers to their end, and report how they have ended.

        Files with relative paths are made in the folder, and sent to the launcher's host.
        """
        # Workers are forks of this process, and have its variables and what it has imported.
        os.environ |= _network(self._address) if args.meeting else LOOPBACK_ALONE
        os.environ |= thread_variables(args.threads)
        # Without this, torch warns of each address that has no name.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        import_for_training(args.engine, args.devices[0])
        from mjfleet.launch.worker_processes import WorkerProcesses

        folder = self._folder
        args = replace(
            args,
            # Rank 0, a fork of this process, has the same descriptor.
            listener=self._listener.fileno() if self._listener else -1,
            run_dir=str(folder / args.run_dir),
            log_files=tuple(str(folder / name) for name in args.log_files),
            agent_log=str(folder / args.agent_log),
            checkpoint=args.checkpoint and str(folder / args.checkpoint),
            scratch=str(folder),
        )
        logs = map(Path, (*args.log_files, args.agent_log))
        self._sent = {path: 0 for path in logs if folder in path.parents}
        Path(args.run_dir).mkdir(exist_ok=True)
        with WorkerProcesses(args) as workers:
            self._workers = workers
            while (end := workers.end()) is None:
                self._send_new()
                if not self._channel.is_full:  # As while the launcher is suspended.
                    self._channel.send(WorkerStatus(workers.has_begun))
        self._sent |= dict.fromkeys(folder.glob("*/failures/*"), 0)
        while self._send_new() or self._channel.is_full:
            time.sleep(0.01)
        self._channel.send(end)

    def _send_new(self) -> bool:
        """Send at most a piece of what is new in each file; return whether anything was.

        Files that workers write beside checkpoints appear as a whole; see rank_files.py.
        """
        found, beside = False, self._folder.glob("*/checkpoints/rank*_*.pt")
        self._sent = dict.fromkeys(beside, 0) | self._sent
        for path, sent in self._sent.items():
            if path.exists() and not self._channel.is_full:
                with path.open("rb") as file:
                    file.seek(sent)
                    data = file.read(FILE_PIECE_BYTES)
                if data:
                    self._sent[path] += len(data)
                    self._channel.send(FilePiece(str(path.relative_to(self._folder)), data))
                    found = True
        return found


def _network(address: str) -> dict[str, str]:
    """Return the variables by which gloo and NCCL use an address's interface; the user's win."""
    found = [
        interface
        for interface, known in psutil.net_if_addrs().items()
        if address in [one.address for one in known]
    ]
    chosen = {name: os.environ.get(name, *found[:1]) for name in LOOPBACK_ALONE}
    return {name: value for name, value in chosen.items() if value}


def main(is_over_ssh: bool = False) -> NoReturn:
    """Serve the launcher at standard input and output; over ssh its silence means it is gone."""
    wait_for_own_children()  # The parent, such as sshd, may ignore SIGCHLD.
    os.environ[PARENT_VARIABLE] = str(os.getpid())  # For processes that this one starts.
    # Only the launcher decides when the run ends: here, handlers do nothing. Workers inherit what
    # is ignored, as SIGHUP is under nohup, and handle the rest themselves.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    # Nothing else may read or write the channel.
    reader, writer = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    folder = Path(tempfile.mkdtemp(prefix=temporary_name(os.getpid())))
    try:
        HostAgent(reader, writer, folder, LOST_SECONDS if is_over_ssh else None).serve()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
