"""The channel between launcher and host agent: lines of JSON, over two pipes, and heartbeats."""

import base64
import json
import logging
import os
import queue
import select
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

from mjfleet.launch.hosts.host_inventory import AskInventory, HostInventory
from mjfleet.worker.failure_record import Failure
from mjfleet.worker.worker_args import Outcome, WorkerArgs

MARK = b"\x1e"
"""Begins a message (RFC 7464). What stands before it, as a login prints it, is ignored."""
HEARTBEAT_SECONDS = 1.0
LOST_SECONDS = 20.0  # A peer on another host that has been silent for this long counts as lost.
FULL = 64  # Queued messages from which on a sender of files should wait.
FILE_PIECE_BYTES = 1 << 18  # Bytes of a file that one message carries at most.

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Meet:
    """Asks the first host to listen where workers will meet, another one to connect there."""

    address: str
    port: int | None = None


@dataclass(frozen=True)
class Answer:
    """Says whether `Meet` worked, and at which port the first host listens."""

    port: int | None = None
    error: str = ""


@dataclass(frozen=True)
class SendSignal:
    """Has the host agent send a signal to all of its workers."""

    number: int


@dataclass(frozen=True)
class WorkerStatus:
    """Says whether training has begun on all workers of a host."""

    has_begun: bool


@dataclass(frozen=True)
class FilePiece:
    """Bytes that the receiver appends to its copy of a file."""

    name: str
    data: bytes


Message = (
    AskInventory | HostInventory | Meet | Answer | WorkerArgs | WorkerStatus | SendSignal
    | FilePiece | Failure | Outcome
)  # fmt: skip
TYPES = {kind.__name__: kind for kind in Message.__args__}


def encode(message: Message) -> bytes:
    """Return a message as a line."""
    fields = dict(vars(message))
    if isinstance(message, FilePiece):
        fields["data"] = base64.b64encode(message.data).decode()
    return MARK + json.dumps([type(message).__name__, fields]).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Return the message of a line, which begins with MARK."""
    name, fields = json.loads(line.partition(MARK)[2])
    if name == FilePiece.__name__:
        fields["data"] = base64.b64decode(fields["data"])
    # JSON has turned the tuples of messages into lists.
    return TYPES[name](**{n: tuple(v) if isinstance(v, list) else v for n, v in fields.items()})


class HostChannel:
    """Sends and receives messages in two threads, until one side is gone.

    `is_disconnected` says that the peer is gone, `is_silent` that it only counts as gone, because
    nothing was heard from it for too long. `error` is what has ended the reading, if something has.

    Args:
        reader: the file descriptor to read from. The channel closes both in the end.
        writer: the one to write to.
        receive: called with each message, in a thread; with None once the peer has disconnected.
        patience: seconds of silence after which the peer counts as gone; None: any number.
    """

    def __init__(
        self,
        reader: int,
        writer: int,
        receive: Callable[[Message | None], object],
        patience: float | None = LOST_SECONDS,
    ) -> None:
        self._reader, self._writer, self._receive = reader, writer, receive
        self._patience = patience
        # Each entry is some lines, which are made when their turn comes.
        self._queue: queue.SimpleQueue[Iterable[bytes] | None] = queue.SimpleQueue()
        self.is_disconnected = self.is_silent = False
        self.error: Exception | None = None
        for work in (self._write, self._read):
            threading.Thread(target=work, name="channel", daemon=True).start()

    @property
    def is_full(self) -> bool:
        """Whether many messages are still queued."""
        return self._queue.qsize() > FULL and not self.is_disconnected

    def send(self, message: Message) -> None:
        """Queue a message. It is dropped if the peer has disconnected."""
        self._queue.put([encode(message)])

    def send_file(self, name: str, file: BinaryIO) -> None:
        """Queue a whole file, with one piece at a time in memory, and close it."""

        def pieces() -> Iterator[bytes]:
            with file:
                while data := file.read(FILE_PIECE_BYTES):
                    yield encode(FilePiece(name, data))

        self._queue.put(pieces())

    def close(self) -> None:
        """Disconnect, once what is queued has been sent."""
        self._queue.put(None)

    def _write(self) -> None:
        # The reading thread reports that the peer is gone.
        with suppress(BrokenPipeError), open(self._writer, "wb") as pipe:
            while (lines := self._next()) is not None:
                for line in lines:
                    pipe.write(line)
                    pipe.flush()

    def _next(self) -> Iterable[bytes] | None:
        try:
            return self._queue.get(timeout=HEARTBEAT_SECONDS)
        except queue.Empty:
            return [b"\n"]

    def _read(self) -> None:
        try:
            self._read_messages()
        except Exception as error:
            self.error = error
            # A host agent logs to its standard error, which the launcher has.
            logger.exception("the messages of the other side cannot be read")
        finally:
            os.close(self._reader)
            self.is_disconnected = True
            self._receive(None)

    def _read_messages(self) -> None:
        rest = b""
        # If this process was suspended, what has arrived meanwhile is read here first.
        while select.select([self._reader], [], [], self._patience)[0]:
            if not (data := os.read(self._reader, 1 << 16)):
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if MARK in line:
                    self._receive(decode(line))
        self.is_silent = True
