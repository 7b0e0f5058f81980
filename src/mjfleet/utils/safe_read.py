"""Reads files that somebody else may have made: regular ones of a sane size. Runs in every process.

No link is followed, no pipe or device is waited for, and what a file says is bounded before it is
believed.
"""

import errno
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from mjfleet.errors import UserError

JSON_BYTES = 4 * 2**20
MAX_DEPTH = 20  # Of lists and mappings inside each other.
MAX_FOLDERS = 30  # Inside each other.
INT_BITS = 63
KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


REMEDY = "no run makes one: remove it."


def open_regular(path: Path, limit: int, may_link: bool = False) -> BinaryIO:
    """Open a regular file of at most `limit` bytes, to which a link leads only if it `may_link`.

    Raises:
        OSError: it does not exist, is something else or larger. Its `strerror` says which.
    """
    _check(os.stat(path, follow_symlinks=may_link), limit)  # Opening a device may do something.
    no_link = 0 if may_link else os.O_NOFOLLOW
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | no_link)
    try:
        _check(os.fstat(descriptor), limit)  # It may be another file by now.
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise


def read_bytes(path: Path, limit: int, may_link: bool = False) -> bytes:
    """Return the content of a regular file of at most `limit` bytes; see `open_regular`."""
    with open_regular(path, limit, may_link) as file:
        size = os.fstat(file.fileno()).st_size
        return file.read(min(size, limit))  # Python allocates at once what it is asked for.


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        OSError: see `open_regular`.
        ValueError: it is not JSON, or is nested too deeply.
    """
    try:
        value = json.loads(read_bytes(path, JSON_BYTES), parse_int=_int)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check_values(value)
    return value


def check_values(value: Any, depth: int = MAX_DEPTH) -> None:
    """Raise ValueError for data that is nested too deeply, or has integers of over INT_BITS."""
    if isinstance(value, int) and value.bit_length() > INT_BITS:
        raise ValueError("it has a huge integer")
    if isinstance(value, (dict, list)):
        if not depth:
            raise ValueError("it is nested too deeply")
        for item in value.values() if isinstance(value, dict) else value:
            check_values(item, depth - 1)


def check_folder(folder: Path, may_link: Iterable[str] = ()) -> None:
    """Refuse a folder in which writing, moving or deleting could reach something outside of it.

    It may hold files, folders, and links to files in it; below the folders `may_link`, also links
    to folders in it, and logs/*.log that lead anywhere, as W&B makes them and never writes them.

    Raises:
        UserError: it holds something else. The message names that.
        OSError: it cannot be looked through.
    """
    inside, linking = Path(os.path.realpath(folder)), {folder / name for name in may_link}
    for here, folders, files in walk(folder, _fail):
        if folders and len(here.relative_to(folder).parts) == MAX_FOLDERS:
            raise UserError(f"{folder}: its folders are nested too deeply; {REMEDY}")
        for path in (here / name for name in (*folders, *files)):
            kind = stat.S_IFMT(os.lstat(path).st_mode)
            is_sound = kind in (stat.S_IFREG, stat.S_IFDIR)
            if kind == stat.S_IFLNK:
                may = bool(linking & {here, *here.parents})
                is_inside = inside in Path(os.path.realpath(path)).parents
                is_log = may and here.name == "logs" and path.suffix == ".log"
                is_sound = (is_inside and may) or ((is_inside or is_log) and not path.is_dir())
            if not is_sound:
                what = KINDS.get(kind, "no regular file")
                raise UserError(f"{folder}: {path.relative_to(folder)} in it is {what}; {REMEDY}")


def walk(
    folder: Path, on_error: Callable[[OSError], object] | None = None
) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield what `os.walk` does, MAX_FOLDERS deep: its own depth is limited by Python's stack."""
    for parent, folders, files in os.walk(folder, onerror=on_error):
        here = Path(parent)
        yield here, list(folders), files
        if len(here.relative_to(folder).parts) == MAX_FOLDERS:
            folders.clear()


def bytes_in(folder: Path) -> int:
    """Return the size of all files in a folder, which may come and go meanwhile."""
    total = 0
    for here, _, files in walk(folder):
        for name in files:
            with suppress(FileNotFoundError):
                total += (here / name).lstat().st_size
    return total


def path_in(run_dir: Path, name: str) -> Path:
    """Return the path of a file or folder of a run directory, which need not exist.

    Raises:
        UserError: it is something else, or a folder on the way is a link, which may lead anywhere.
    """
    path = run_dir
    for part in Path(name).parts:
        path /= part
        kind = stat.S_IFMT(path.lstat().st_mode) if os.path.lexists(path) else stat.S_IFREG
        if kind not in (stat.S_IFREG, stat.S_IFDIR):
            what = KINDS.get(kind, "no regular file")
            raise UserError(f"{run_dir}: {path.relative_to(run_dir)} in it is {what}; {REMEDY}")
    return path


def _fail(error: OSError) -> None:
    raise error


def _check(about: os.stat_result, limit: int) -> None:
    kind = stat.S_IFMT(about.st_mode)
    if kind != stat.S_IFREG:
        code = errno.EISDIR if kind == stat.S_IFDIR else errno.EINVAL
        raise OSError(code, f"it is {KINDS.get(kind, 'something else')}, not a regular file")
    if about.st_size > limit:
        raise OSError(errno.EFBIG, f"it has {about.st_size:,} bytes; {limit:,} are allowed")


def _int(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError("it has a huge integer")
    return int(digits)
