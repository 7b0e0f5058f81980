"""Checks the file that a command was asked to write, before any work is done for it."""

import tempfile
from collections.abc import Collection
from pathlib import Path

from mjfleet.errors import UserError


def check_output(flag: str, name: str, suffixes: Collection[str] = ()) -> Path:
    """Return the path of a file that can be written. Its folder has to exist.

    Without `suffixes`, its name may end in any way, and it may be a device or a pipe.

    Raises:
        UserError: it cannot be written, or its name ends in none of these.
    """
    path = Path(name)
    if suffixes and path.suffix not in suffixes:
        raise UserError(f"{flag} {name}: the file's name must end in {', '.join(suffixes)}.")
    if path.is_dir():
        raise UserError(f"{flag} {name}: Is a directory.")
    try:
        if path.is_file() or not path.exists():
            tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise UserError(f"{flag} {name}: {path.parent}: {error.strerror}.") from None
    return path
