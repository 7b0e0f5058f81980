"""Reads files that somebody else may have made: regular ones of a limited size. Runs anywhere."""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from mjfleet.errors import UserError

JSON_BYTES = 4 * 2**20


def open_regular(path: Path, limit: int, may_link: bool = False) -> BinaryIO:
    """Open a regular file of at most `limit` bytes, to which a link leads only if it `may_link`.

    OSError, whose `strerror` says why, if it does not exist, is something else or larger.
    """
    about = path.stat(follow_symlinks=may_link)
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    if about.st_size > limit:
        raise OSError(errno.EFBIG, f"it has {about.st_size:,} bytes; {limit:,} are allowed")
    return path.open("rb")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; OSError as by `open_regular`, ValueError if it is none."""
    with open_regular(path, JSON_BYTES) as file:
        try:
            return json.load(file)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None


def check_folder(folder: Path, allowed: Path | None = None) -> None:
    """Raise UserError for a folder with a link, which could lead a run to write or move elsewhere.

    One link in it may be allowed. W&B makes links in its own folders, called wandb, which are left
    alone.
    """
    for here, folders, files in os.walk(folder):
        for path in (Path(here, name) for name in (*folders, *files)):
            kind = path.lstat().st_mode
            if path != allowed and not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
                what = "a symbolic link" if stat.S_ISLNK(kind) else "not a regular file"
                name = path.relative_to(folder)
                raise UserError(f"{folder}: {name} in it is {what}; no run makes one: remove it.")
        folders[:] = [name for name in folders if name != "wandb"]
