"""Reads files that somebody else may have made: regular ones of a limited size. Runs anywhere."""

import errno
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from mjfleet.errors import UserError

JSON_BYTES = 4 * 2**20


def open_regular(path: Path, limit: int, may_link: bool = False) -> BinaryIO:
    """Open a regular file of at most `limit` bytes, to which a link leads only if it `may_link`.

    Raises:
        OSError: it does not exist, is something else or larger. Its `strerror` says which.
    """
    about = path.stat(follow_symlinks=may_link)
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    if about.st_size > limit:
        raise OSError(errno.EFBIG, f"it has {about.st_size:,} bytes; {limit:,} are allowed")
    return path.open("rb")


def read_bytes(path: Path, limit: int, may_link: bool = False) -> bytes:
    """Return the content of a regular file of at most `limit` bytes; see `open_regular`."""
    with open_regular(path, limit, may_link) as file:
        return file.read()


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        OSError: see `open_regular`.
        ValueError: it is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(read_bytes(path, JSON_BYTES))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check_folder(folder: Path) -> None:
    """Refuse a folder with a link, through which a run could write, move or delete elsewhere.

    W&B makes links in its own folders, called wandb, which are left alone.

    Raises:
        UserError: it holds a link, or what is neither a regular file nor a folder.
    """
    for here, folders, files in os.walk(folder):
        for path in (Path(here, name) for name in (*folders, *files)):
            kind = path.lstat().st_mode
            if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
                what = "a symbolic link" if stat.S_ISLNK(kind) else "not a regular file"
                name = path.relative_to(folder)
                raise UserError(f"{folder}: {name} in it is {what}; no run makes one: remove it.")
        folders[:] = [name for name in folders if name != "wandb"]


def bytes_in(folder: Path) -> int:
    """Return the size of all files in a folder, which may come and go meanwhile."""
    total = 0
    for here, _, files in os.walk(folder):
        for name in files:
            with suppress(FileNotFoundError):
                total += Path(here, name).lstat().st_size
    return total
