"""The channel between the launcher and a host agent: messages both ways, each a line of JSON.

Over ssh each side sends at least a heartbeat every second: a cut cable does not close a connection.
"""

import base64
import json
import logging
import os
import queue
import select
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

HEARTBEAT_SECONDS = 1.0
LOST_SECONDS = 20.0  # A peer on another host that has been silent for this long counts as lost.
MARK = b"\x1e"
"""Begins a message (RFC 7464). Other lines, such as those that a login prints, are ignored."""
FULL = 64  # Queued messages from which on a sender of files should wait.
PIECE = 1 << 18  # Bytes of a file that one message carries at most.

Message = dict[str, Any]

logger = logging.getLogger(__name__)


class HostChannel:
    """Messages over two pipes.

    `is_disconnected` says that the peer is gone, `is_silent` that it only counts as gone, because
    nothing was heard from it for too long. `error` is what has ended the reading, if something has:
    the peer then counts as gone, too.

    Args:
        reader: the file descriptor to read from. The channel closes both in the end.
        writer: the one to write to.
        receive: called with each message, in a thread; with None once the peer has disconnected.
        patience: seconds of silence after which the peer counts as lost; None: only a closed pipe
            does, because the peer runs on this host.
        greeting: bytes to send before all messages.
    """

    def __init__(
        self,
        reader: int,
        writer: int,
        receive: Callable[[Message | None], object],
        patience: float | None = LOST_SECONDS,
        greeting: bytes = b"",
    ) -> None:
        self._reader, self._writer, self._receive = reader, writer, receive
        self._patience = patience
        # Each entry is some lines, which are made when their turn comes.
        self._queue: queue.SimpleQueue[Iterable[bytes] | None] = queue.SimpleQueue()
        self._queue.put([greeting])
        self.is_disconnected = self.is_silent = False
        self.error: Exception | None = None
        self._writing = threading.Thread(target=self._write, name="channel", daemon=True)
        self._writing.start()
        threading.Thread(target=self._read, name="channel", daemon=True).start()

    @property
    def is_full(self) -> bool:
        """Whether many messages are still queued."""
        return self._queue.qsize() > FULL and not self.is_disconnected

    def send(self, message: Message) -> None:
        """Queue a message. It is dropped if the peer has disconnected."""
        self._queue.put([_line(message)])

    def send_piece(self, name: str, data: bytes) -> None:
        """Queue bytes, at most PIECE, that the peer is to append to its copy of a file."""
        self._queue.put([_piece(name, data)])

    def send_file(self, name: str, file: BinaryIO) -> None:
        """Queue a whole file, which is closed afterwards.

        Each piece is read once the one before has been sent: a checkpoint is larger than what
        should wait in memory for each host.
        """

        def pieces() -> Iterator[bytes]:
            with file:
                while data := file.read(PIECE):
                    yield _piece(name, data)

        self._queue.put(pieces())

    def close(self, seconds: float) -> None:
        """Send what is queued, for so many seconds at most, and disconnect."""
        self._queue.put(None)
        if not self.is_disconnected:
            self._writing.join(seconds)

    def _write(self) -> None:
        try:
            while (lines := self._next()) is not None:
                for line in lines:
                    if not self._write_line(line):
                        return
        finally:
            os.close(self._writer)

    def _write_line(self, data: bytes) -> bool:
        """Write a line; return whether the peer is still there."""
        try:
            while data:
                data = data[os.write(self._writer, data) :]
        except OSError:  # The reading thread reports that the peer is gone.
            return False
        return True

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
            # Of a host agent, what it logs is on its standard error, which the launcher has.
            logger.exception("the messages of the other side cannot be read")
        finally:
            os.close(self._reader)
            self.is_disconnected = True
            self._receive(None)

    def _read_messages(self) -> None:
        rest = b""
        # If this process was suspended, what has arrived meanwhile is read here first.
        while select.select([self._reader], [], [], self._patience)[0]:
            data = os.read(self._reader, 1 << 16)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if line.startswith(MARK):
                    message = json.loads(line[1:])
                    if "file" in message:
                        message["data"] = base64.b64decode(message["data"])
                    self._receive(message)
            if not data:
                break
        else:
            self.is_silent = True


def _line(message: Message) -> bytes:
    return MARK + json.dumps(message).encode() + b"\n"


def _piece(name: str, data: bytes) -> bytes:
    return _line({"file": name, "data": base64.b64encode(data).decode()})
