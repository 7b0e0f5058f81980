"""Looks at a checkpoint's file as a zip archive, before torch reads it. Imports no torch."""

import json
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

from mjfleet.utils.safe_read import open_regular

CHECKPOINT_BYTES = 2**40
ABOUT = "archive/mjfleet.json"
"""The record of what a checkpoint says of itself, for those who do not import torch."""
ABOUT_BYTES = 50_000
DIRECTORY_BYTES = 2**23  # Of the list of an archive's records, which is read whole.


def why_damaged(checkpoint: Path, is_thorough: bool = True) -> str | None:
    """Return what is wrong with the file of a checkpoint, or None.

    The check sums are compared only if `is_thorough`, since that reads the whole file. Records must
    be stored as they are, as torch writes them: a small file could otherwise fill the memory.
    """
    try:
        with open_regular(checkpoint, CHECKPOINT_BYTES) as file, _archive(file) as archive:
            records = archive.infolist()
            if any(record.compress_type != zipfile.ZIP_STORED for record in records):
                return "its records are compressed, as torch writes none"
            if sum(record.file_size for record in records) > file.seek(0, 2):
                return "its records are larger than the file"
            bad = archive.testzip() if is_thorough else None
    except OSError as error:
        return error.strerror
    except (zipfile.BadZipFile, EOFError, ValueError, RuntimeError) as error:
        return str(error) or type(error).__name__
    return f"{bad} does not match its check sum" if bad else None


def about(checkpoint: Path) -> dict[str, Any]:
    """Return what a checkpoint says of itself: `iteration`, `task`, `task_hash`, `networks`.

    Empty if it says nothing, as those of earlier versions and of rsl_rl, or cannot be read.
    """
    try:
        with open_regular(checkpoint, CHECKPOINT_BYTES) as file, _archive(file) as archive:
            record = archive.getinfo(ABOUT)
            if record.compress_type != zipfile.ZIP_STORED or record.file_size > ABOUT_BYTES:
                return {}
            found = json.loads(archive.read(record))
    except (OSError, KeyError, ValueError, RuntimeError, zipfile.BadZipFile):
        return {}
    return found if isinstance(found, dict) else {}


def _archive(file: BinaryIO) -> zipfile.ZipFile:
    """Return an archive whose list of records fits into memory, and ends the file."""
    file.seek(max(0, file.seek(0, 2) - 98))
    end = file.read()  # Perhaps the end of a ZIP64 archive (56 bytes), where that is (20), the end.
    sizes = [int.from_bytes(end[-10:-6], "little")]
    if end[-42:-38] == b"PK\6\7":
        sizes.append(int.from_bytes(end[-58:-50], "little"))
    if end[-22:-18] != b"PK\5\6":
        raise zipfile.BadZipFile("File is not a zip file")
    if max(sizes) > DIRECTORY_BYTES:
        raise zipfile.BadZipFile("it has too many records")
    return zipfile.ZipFile(file)
