"""Counts how often warp compiles kernels, by what it does in its cache folder; see inotify(7).

Runs in the launching process. Warp makes a folder that carries the process's number for each module
that it compiles, and renames it when that is done: one that is compiled twice leaves no trace.
"""

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

_EVENT = struct.Struct("iIII")
_CREATE = 0x100
_READ = 1 << 20


@dataclass
class Compilations:
    """Of modules of kernels, in any process."""

    events: list[str] = field(default_factory=list)
    """The name of each module, as often as it was compiled."""


@contextmanager
def compilations(cache: Path) -> Iterator[Compilations]:
    """Count those during the block, which sets WARP_CACHE_PATH to `cache` for its children."""
    folder = cache / version("warp-lang")
    folder.mkdir(parents=True, exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    queue = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if queue < 0 or libc.inotify_add_watch(queue, os.fsencode(folder), _CREATE) < 0:
        raise OSError(ctypes.get_errno(), "inotify does not work here")
    found = Compilations()
    try:
        yield found
        found.events += [name.rpartition("_p")[0] for name in _created(queue) if "_p" in name]
    finally:
        os.close(queue)


def _created(queue: int) -> Iterator[str]:
    """The names in the events that wait in the queue."""
    while True:
        try:
            data = os.read(queue, _READ)
        except BlockingIOError:
            return
        start = 0
        while start < len(data):
            *_, length = _EVENT.unpack_from(data, start)
            start += _EVENT.size
            yield data[start : start + length].rstrip(b"\0").decode()
            start += length
