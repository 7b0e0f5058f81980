"""Brings rank 0's output to the launcher's terminal and to its log file. Runs in the launcher."""

import atexit
import fcntl
import os
import pty
import select
import sys
import termios
import threading
import tty
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO, Self

from mjfleet.utils.console import printable

BEHIND_BYTES = 16 << 20  # By which the terminal may be behind rank 0 before it loses lines.
SHOW_SECONDS = 2.0  # How long the end of a run waits for a terminal that is behind.


class OutputRelay:
    """Copies rank 0's output to this process's own, byte by byte, and into its log file.

    Standard output and standard error have a channel each: a pseudo-terminal if this process writes
    to a terminal, otherwise a pipe. A thread empties them, and never waits for the terminal: rank 0
    would wait with it, and so would all others.
    """

    def __init__(self, log_file: Path | None) -> None:
        self._log: BinaryIO | None = log_file.open("a+b", buffering=0) if log_file else None
        self.passed = 0
        """Bytes of rank 0 so far."""
        self._terminal = _Terminal(f"; {log_file} has them" if log_file else "")
        self._channels = {stream: _channel(stream) for stream in (1, 2)}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._copy, name="relay", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for ends in self._channels.values():
            for end in ends:
                os.close(end)
        if self._log:
            self._log.close()
        self._terminal.close()

    @property
    def paths(self) -> tuple[str, str]:
        """The files that a worker on this host opens as its standard output and error."""
        out, error = (f"/proc/{os.getpid()}/fd/{ends[1]}" for ends in self._channels.values())
        return out, error

    def print_line(self, text: str) -> None:
        """Print a line of this process's own before what workers print from now on."""
        line = f"{printable(text)}\n"
        self._terminal.show(1, line.encode(sys.stdout.encoding, "backslashreplace"))

    def pass_on(self, stream: int, data: bytes) -> None:
        """Write output of rank 0 to both; a failure is a warning, since rank 0 must not wait."""
        self.passed += len(data)
        if self._log:
            try:
                self._log.write(data)
            except OSError as error:
                text = f"{self._log.name} ends here: {error.strerror}\n"
                self._terminal.show(2, text.encode(errors="replace"))
                self._log = None
        self._terminal.show(stream, data)

    def _copy(self) -> None:
        streams = {reader: stream for stream, (reader, _) in self._channels.items()}
        while True:
            # Asked before the look: what comes later is not from a worker of this run.
            ended = self._ended.is_set()
            for stream, (_, writer) in self._channels.items():
                _pass_on_size(stream, writer)
            ready, _, _ = select.select(streams, [], [], 0 if ended else 0.1)
            for reader in ready:
                self.pass_on(streams[reader], os.read(reader, 65536))
            if ended and not ready:
                return


class _Terminal:
    """Writes to this process's standard output and error, in a thread that may be held up there.

    Beyond a limit of what it has not written yet, whole lines are left out. A line says how many,
    and where they are.
    """

    def __init__(self, where_all_is: str) -> None:
        self._where_all_is = where_all_is
        self._pieces = SimpleQueue[tuple[int, bytes] | None]()  # With the number of the stream.
        self._queued = self._written = 0  # Bytes; each number is changed by one thread.
        self._missing: dict[int, int] = {}  # Lines of a stream that are being left out.
        self._thread = threading.Thread(target=self._write, name="terminal", daemon=True)
        self._thread.start()

    def show(self, stream: int, data: bytes) -> None:
        """Write data as soon as possible."""
        behind = self._queued - self._written + len(data)
        line_end = data.find(b"\n") + 1
        if stream in self._missing:
            if behind > BEHIND_BYTES // 2 or not line_end:
                self._missing[stream] += data.count(b"\n")
                return
            self._missing[stream] += 1
            self._say_what_is_missing(stream)
            data = data[line_end:]
        elif behind > BEHIND_BYTES:
            self._missing[stream] = data.count(b"\n", line_end)
            data = data[:line_end]
        self._queue(stream, data)

    def close(self) -> None:
        """Write what is left; where nobody reads it, the end of this process waits for that."""
        for stream in [*self._missing]:
            self._say_what_is_missing(stream)
        self._pieces.put(None)
        self._thread.join(SHOW_SECONDS)
        if self._thread.is_alive():
            atexit.register(self._thread.join)

    def _say_what_is_missing(self, stream: int) -> None:
        number = self._missing.pop(stream)
        text = f"lines that were not shown here: {number}{self._where_all_is}\n"
        self._queue(stream, text.encode(errors="replace"))

    def _queue(self, stream: int, data: bytes) -> None:
        self._queued += len(data)
        self._pieces.put((stream, data))

    def _write(self) -> None:
        silent: set[int] = set()
        while piece := self._pieces.get():
            stream, data = piece
            size = len(data)
            try:
                while data and stream not in silent:
                    data = data[os.write(stream, data) :]
            except OSError:  # As after `| head`, or on a full disk: the log file has it.
                silent.add(stream)
            self._written += size


def _channel(stream: int) -> tuple[int, int]:
    """Return an end to read from, and one for the worker to write to."""
    if not os.isatty(stream):
        return os.pipe()
    reader, writer = pty.openpty()
    tty.setraw(writer)  # Bytes pass as they are.
    return reader, writer


def _pass_on_size(stream: int, writer: int) -> None:
    with suppress(OSError):  # A pipe, or a terminal that has gone away.
        size = fcntl.ioctl(stream, termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(writer, termios.TIOCSWINSZ, size)
