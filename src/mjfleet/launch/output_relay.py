"""Brings rank 0's output to the launcher's terminal and to its log file. Runs in the launcher."""

import fcntl
import logging
import os
import pty
import select
import termios
import threading
import tty
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Self

logger = logging.getLogger(__name__)


class OutputRelay:
    """Copies rank 0's output to this process's own, byte by byte, and into its log file.

    Standard output and standard error have a channel each: a pseudo-terminal if this process writes
    to a terminal, otherwise a pipe.
    """

    def __init__(self, log_file: Path | None) -> None:
        self._log: BinaryIO | None = log_file.open("ab", buffering=0) if log_file else None
        self._channels = {stream: _channel(stream) for stream in (1, 2)}
        self._silent: set[int] = set()
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

    @property
    def paths(self) -> tuple[str, str]:
        """The files that a worker on this host opens as its standard output and error."""
        out, error = (f"/proc/{os.getpid()}/fd/{ends[1]}" for ends in self._channels.values())
        return out, error

    def pass_on(self, stream: int, data: bytes) -> None:
        """Write output of rank 0 to both; a failure is a warning, since rank 0 must not wait."""
        if self._log:
            try:
                self._log.write(data)
            except OSError as error:
                logger.warning("%s ends here: %s", self._log.name, error.strerror)
                self._log = None
        while data and stream not in self._silent:
            try:
                data = data[os.write(stream, data) :]
            except OSError:  # As after `| head`, or on a full disk: the log file has it.
                self._silent.add(stream)

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
