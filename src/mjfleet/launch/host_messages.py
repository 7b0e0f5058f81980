"""The connection of the launcher with its deputy on a host: messages both ways, and a pulse.

Either side notices within LOST_SECONDS when the other one, its host or the network is gone: a cut
cable tells nobody.
"""

import base64
import json
import os
import queue
import select
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

BEAT_SECONDS = 1.0
"""How often a side says at least that it is there."""
LOST_SECONDS = 20.0
"""For how long nothing may be heard."""
MARK = b"\x1e"
"""Begins a message; other lines, such as those that a login prints, are none. See RFC 7464."""
FULL = 64
"""Messages that may wait before a sender should rather wait itself."""

PIECE = 1 << 18
"""Bytes of a file that travel together."""

Message = dict[str, Any]


class HostChannel:
    """Messages over two pipes, each a line of JSON.

    Args:
        reader: the file descriptor to read from.
        writer: the one to write to.
        receive: called with each message, in a thread; in the end with None.
        greeting: a line to send first.
    """

    def __init__(
        self,
        reader: int,
        writer: int,
        receive: Callable[[Message | None], object],
        greeting: str = "",
    ) -> None:
        self._reader, self._writer, self._receive = reader, writer, receive
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._waiting.put(greeting.encode() + b"\n")
        self.is_over = False
        """Whether there is nobody at the other end any more."""
        self.is_silent = False
        """Whether that is because nothing was heard for too long."""
        self._writing = threading.Thread(target=self._write, name="link", daemon=True)
        self._writing.start()
        threading.Thread(target=self._read, name="link", daemon=True).start()

    @property
    def is_full(self) -> bool:
        """Whether what was sent is still waiting."""
        return self._waiting.qsize() > FULL and not self.is_over

    def send(self, message: Message) -> None:
        """Send a message, some time; once the other side is gone, to nobody."""
        self._waiting.put(MARK + json.dumps(message).encode() + b"\n")

    def send_file(self, name: str, data: bytes) -> None:
        """Send bytes that belong behind what was sent of a file."""
        for start in range(0, len(data), PIECE):
            piece = base64.b64encode(data[start : start + PIECE]).decode()
            self.send({"file": name, "data": piece})

    def close(self, seconds: float) -> None:
        """Send what is waiting, for so long at most; then the other side receives None."""
        self._waiting.put(None)
        if not self.is_over:
            self._writing.join(seconds)

    def _write(self) -> None:
        try:
            while (data := self._next()) is not None:
                while data:
                    data = data[os.write(self._writer, data) :]
        except OSError:
            pass  # The reading thread sees it as well.
        finally:
            os.close(self._writer)

    def _next(self) -> bytes | None:
        try:
            return self._waiting.get(timeout=BEAT_SECONDS)
        except queue.Empty:
            return b"\n"

    def _read(self) -> None:
        rest = b""
        # Whoever was suspended himself finds here what has come meanwhile.
        while select.select([self._reader], [], [], LOST_SECONDS)[0]:
            data = os.read(self._reader, 1 << 16)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if line.startswith(MARK):
                    self._receive(_decoded(line[1:]))
            if not data:
                break
        else:
            self.is_silent = True
        self.is_over = True
        self._receive(None)


def _decoded(line: bytes) -> Message:
    message = json.loads(line)
    if "file" in message:
        message["data"] = base64.b64decode(message["data"])
    return message


def append(path: Path, data: bytes) -> None:
    """Put bytes that were sent of a file behind those that came before."""
    with path.open("ab") as file:
        file.write(data)
