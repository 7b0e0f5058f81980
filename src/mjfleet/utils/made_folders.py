"""Makes folders with their parents, and removes those that it has made. Runs anywhere."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mjfleet.errors import UserError


def make_folder(folder: Path, name: str) -> list[Path]:
    """Make a folder and its parents, unless it is there; return those that are new, parents last.

    UserError, which calls it `name`, if it cannot be made.
    """
    made = [path for path in folder.parents if not path.exists()]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # Another process may have made it meanwhile.
            folder.mkdir()
            made.insert(0, folder)
    except OSError as error:
        remove_empty(made)
        raise UserError(f"{name} {folder}: {error.strerror}.") from None
    return made


def remove_empty(folders: Sequence[Path]) -> None:
    """Remove the empty ones among folders; parents come last."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()
