"""Files that a configuration names: found, pinned by their content, and copied into a run.

A name may be a file or a folder, with a weight: `walk.csv`, `moves/`, `walk.csv=2`. It is relative
to the current folder, or to the task's: `task:clips/walk.npz`. Pinned, it is a file with the
beginning of its SHA-256, `walk.csv@0f3a56b19c2d8e47=2`; a run has a copy of it.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mjfleet.errors import UserError
from mjfleet.utils.safe_read import open_regular

FOLDER = "files"
OF_TASK = "task:"
FILE_BYTES = 2**30
ENTRY = re.compile(r"(?P<name>.+?)(@(?P<hash>[0-9a-f]{16}))?(=(?P<weight>[^=@/]*))?", re.DOTALL)


@dataclass(frozen=True)
class Suffixes:
    """Marks a field of an environment's configuration, `tuple[str, ...]`, whose entries name files
    with these suffixes."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class InputFile:
    """A file that a configuration names."""

    path: Path
    name: str  # As it was typed; of a file in a folder, with the folder.
    weight: float = 1.0

    @property
    def copy(self) -> str:
        """The name of its copy in a run."""
        return f"{_hash(self.path)}_{file_name(self.name)}"

    @property
    def pinned(self) -> str:
        """The entry that names this content."""
        weight = "" if self.weight == 1.0 else f"={self.weight:g}"
        return f"{self.name}@{_hash(self.path)}{weight}"


def find_files(
    entries: Sequence[str], places: Sequence[Path], suffixes: Sequence[str], flag: str
) -> list[InputFile]:
    """Return the files that entries of a configuration name, those of a folder by their names.

    Args:
        entries: as above.
        places: the folder of the task, and runs that have copies.
        suffixes: of the files that count in a folder.
        flag: how messages call what holds the entries.

    Raises:
        UserError: there is no such file, a pinned one has another content, or a weight is wrong.
    """
    return [file for entry in entries for file in _find(entry, places, suffixes, flag)]


def path_of(name: str, places: Sequence[Path]) -> Path:
    """Return the path of a name, of the task whose folder is the first of `places`."""
    return places[0] / name.removeprefix(OF_TASK) if name.startswith(OF_TASK) else Path(name)


def file_name(name: str) -> str:
    """Return the name of the file alone."""
    return Path(name.removeprefix(OF_TASK)).name


def name_of(entry: str) -> str:
    """Return the name in an entry, without a hash and a weight."""
    match = ENTRY.fullmatch(entry)
    return match.group("name") if match else entry


def _find(
    entry: str, places: Sequence[Path], suffixes: Sequence[str], flag: str
) -> Iterator[InputFile]:
    match = ENTRY.fullmatch(entry)
    name, pinned, text = match.group("name", "hash", "weight") if match else ("", None, None)
    try:
        weight = 1.0 if text is None else float(text)
    except ValueError:
        weight = 0.0
    if not (name and 0 < weight < float("inf")):
        raise UserError(f"{flag} {entry}: write FILE, FOLDER, or either with a weight: FILE=2.")
    if pinned:
        copy = f"{pinned}_{file_name(name)}"
        found = [place / part for place in places for part in (f"{FOLDER}/{copy}", copy)]
        found.append(path_of(name, places))
        whole = next((path for path in found if path.is_file() and _hash(path) == pinned), None)
        if whole is None:
            raise UserError(
                f"{flag} {entry}: no run has a copy there, nor is {name} a file with this content."
            )
        yield InputFile(whole, name, weight)
        return
    path = path_of(name, places)
    if not path.exists():
        raise UserError(f"{flag} {entry}: there is no such file or folder.")
    if path.is_file():
        yield InputFile(path, name, weight)
        return
    inside = sorted(file for file in path.iterdir() if file.suffix.lower() in suffixes)
    if not inside:
        raise UserError(f"{flag} {entry}: the folder has no file of {', '.join(suffixes)}.")
    for file in inside:
        yield InputFile(file, f"{name.rstrip('/')}/{file.name}", weight)


def _hash(path: Path) -> str:
    """Return the beginning of a file's SHA-256; UserError if it cannot be read."""
    try:
        opened: Any = open_regular(path, FILE_BYTES, may_link=True)
        with opened as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}.") from None
